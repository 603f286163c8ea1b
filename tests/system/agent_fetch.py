"""Runs inside a lab's node: fetches URLs, JSON in, JSON out: [status, text, seconds] each. Standard library only.

In: {"urls": [[url, user or ""], ...], "ca": file}.
"""

import base64
import json
import ssl
import sys
import time
import urllib.error
import urllib.request

asked = json.load(sys.stdin)
context = ssl.create_default_context(cafile=asked["ca"])
# The nodes' clocks may be years apart from the certificate's dates on purpose.
found = []
for url, user in asked["urls"]:
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    began_s = time.monotonic()
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=5, context=context if url[:5] == "https" else None
        ) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    except OSError as error:
        status, text = 0, str(error)
    found.append([status, text, time.monotonic() - began_s])
json.dump(found, sys.stdout)
