"""The main job, end to end, on a lab: from a cluster file to clocks measured between ranks."""
