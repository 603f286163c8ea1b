"""What chronyd answers: one class a report, its fields in wire order. Facts: chrony's candm.h, versions 4.0 to 4.9.

chrony says how far the clock must still be *corrected*; here everything is local - reference: the sign is turned in
`Tracking.offset_ns` and `NtpData.offset_ns`, and nowhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from rankclock.wire.chrony_fields import ADDRESS, FLOAT, TIMESPEC, ChronyAddress, refid_text
from rankclock.wire.layout import I8, I16, U8, U16, U32, U64, Record, octets

__all__ = [
    "LEAP_UNSYNCHRONISED",
    "NO_SAMPLE_AGE_S",
    "REFID_LOCAL",
    "Activity",
    "AuthData",
    "AuthMode",
    "NtpData",
    "NtpDataWithStamps",
    "NumberOfSources",
    "SelectData",
    "ServerStats",
    "ServerStats2",
    "ServerStats3",
    "ServerStats4",
    "SourceData",
    "SourceMode",
    "SourceState",
    "SourceStats",
    "Tracking",
]

LEAP_UNSYNCHRONISED = 3
REFID_LOCAL = 0x7F7F0101
"""127.127.1.1: chronyd serves its own clock (`local`); zeros in such a reply mean nothing."""

NO_SAMPLE_AGE_S = 0xFFFFFFFF
"""since_sample_s of a source without a sample; its other numbers are zeros that mean nothing."""


class SourceState(IntEnum):
    """What chronyd's selection thinks of a source; the character that chronyc prints is in `mark`."""

    SELECTED = 0
    NONSELECTABLE = 1
    FALSETICKER = 2
    JITTERY = 3
    COMBINED = 4  # candm.h calls it UNSELECTED
    SELECTABLE = 5

    @property
    def mark(self) -> str:
        """`*` followed, `+` combined, `-` not combined, `?` unusable, `x` falseticker, `~` too variable."""
        return "*?x~+-"[self]


class SourceMode(IntEnum):
    """What kind of source it is."""

    CLIENT = 0
    PEER = 1
    REFCLOCK = 2


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking(Record):
    """What chronyd thinks of the system clock. Read `leap` and `refid` first: while not synchronised, root_delay_s and
    root_dispersion_s are the constant 1.0; in `local` mode everything is 0 (monitoring facts 1 and 2).

    current_correction_s: chrony's sign (what must still be added to the clock); use `offset_ns`.
    ref_time_ns: the last update, made earlier by up to 1 s on purpose (chrony's fuzz_ref_time).
    """

    refid: Annotated[int, U32]
    address: Annotated[ChronyAddress, ADDRESS]
    stratum: Annotated[int, U16]
    leap: Annotated[int, U16]
    ref_time_ns: Annotated[int, TIMESPEC]
    current_correction_s: Annotated[float, FLOAT]
    last_offset_s: Annotated[float, FLOAT]
    rms_offset_s: Annotated[float, FLOAT]
    freq_ppm: Annotated[float, FLOAT]
    resid_freq_ppm: Annotated[float, FLOAT]
    skew_ppm: Annotated[float, FLOAT]
    root_delay_s: Annotated[float, FLOAT]
    root_dispersion_s: Annotated[float, FLOAT]
    last_update_interval_s: Annotated[float, FLOAT]

    @property
    def offset_ns(self) -> int:
        """The system clock minus the time that chronyd estimates: positive is ahead ("fast" in chronyc)."""
        return -_ns(self.current_correction_s)

    @property
    def root_distance_ns(self) -> int:
        """root dispersion + root delay / 2, rounded up: chrony's worst case beside the offset."""
        return math.ceil((self.root_dispersion_s + self.root_delay_s / 2) * 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOfSources(Record):
    """How many indices SOURCE_DATA takes."""

    count: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceData(Record):
    """One line of `chronyc sources`. The three measurements are local - source, as chronyc prints them."""

    address: Annotated[ChronyAddress, ADDRESS]
    poll: Annotated[int, I16]
    stratum: Annotated[int, U16]
    state: Annotated[int, U16]
    mode: Annotated[int, U16]
    flags: Annotated[int, U16]
    reach: Annotated[int, U16]
    since_sample_s: Annotated[int, U32]
    orig_latest_s: Annotated[float, FLOAT]
    latest_s: Annotated[float, FLOAT]
    latest_err_s: Annotated[float, FLOAT]

    @property
    def has_sample(self) -> bool:
        """Whether the measurements mean anything."""
        return self.since_sample_s != NO_SAMPLE_AGE_S

    @property
    def name(self) -> str:
        """The address; of a reference clock its reference id."""
        if self.mode == SourceMode.REFCLOCK:
            return refid_text(int.from_bytes(self.address.packed[:4], "big"))
        return self.address.text

    @property
    def mark(self) -> str:
        """chronyc's character for the state; '!' for a state of a later version."""
        return SourceState(self.state).mark if self.state <= max(SourceState) else "!"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats(Record):
    """One line of `chronyc sourcestats`."""

    refid: Annotated[int, U32]
    address: Annotated[ChronyAddress, ADDRESS]
    samples: Annotated[int, U32]
    runs: Annotated[int, U32]
    span_s: Annotated[int, U32]
    stddev_s: Annotated[float, FLOAT]
    freq_ppm: Annotated[float, FLOAT]
    skew_ppm: Annotated[float, FLOAT]
    est_offset_s: Annotated[float, FLOAT]
    est_offset_err_s: Annotated[float, FLOAT]


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity(Record):
    """How many sources are online, offline, in a burst, or not resolved."""

    online: Annotated[int, U32]
    offline: Annotated[int, U32]
    burst_online: Annotated[int, U32]
    burst_offline: Annotated[int, U32]
    unresolved: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats(Record):
    """`chronyc serverstats` up to 4.0: packets taken and dropped as a server since the start."""

    ntp_hits: Annotated[int, U32]
    cmd_hits: Annotated[int, U32]
    ntp_drops: Annotated[int, U32]
    cmd_drops: Annotated[int, U32]
    log_drops: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats2(Record):
    """The same of 4.1, with NTS."""

    ntp_hits: Annotated[int, U32]
    nke_hits: Annotated[int, U32]
    cmd_hits: Annotated[int, U32]
    ntp_drops: Annotated[int, U32]
    nke_drops: Annotated[int, U32]
    cmd_drops: Annotated[int, U32]
    log_drops: Annotated[int, U32]
    ntp_auth_hits: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats3(Record):
    """The same of 4.2 and 4.3, with the interleaved mode."""

    ntp_hits: Annotated[int, U32]
    nke_hits: Annotated[int, U32]
    cmd_hits: Annotated[int, U32]
    ntp_drops: Annotated[int, U32]
    nke_drops: Annotated[int, U32]
    cmd_drops: Annotated[int, U32]
    log_drops: Annotated[int, U32]
    ntp_auth_hits: Annotated[int, U32]
    ntp_interleaved_hits: Annotated[int, U32]
    ntp_timestamps: Annotated[int, U32]
    ntp_span_s: Annotated[int, U32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStats4(Record):
    """The same from 4.4 on, in 64 bits, with who took the time stamps of requests and replies."""

    ntp_hits: Annotated[int, U64]
    nke_hits: Annotated[int, U64]
    cmd_hits: Annotated[int, U64]
    ntp_drops: Annotated[int, U64]
    nke_drops: Annotated[int, U64]
    cmd_drops: Annotated[int, U64]
    log_drops: Annotated[int, U64]
    ntp_auth_hits: Annotated[int, U64]
    ntp_interleaved_hits: Annotated[int, U64]
    ntp_timestamps: Annotated[int, U64]
    ntp_span_s: Annotated[int, U64]
    ntp_daemon_rx_timestamps: Annotated[int, U64]
    ntp_daemon_tx_timestamps: Annotated[int, U64]
    ntp_kernel_rx_timestamps: Annotated[int, U64]
    ntp_kernel_tx_timestamps: Annotated[int, U64]
    ntp_hw_rx_timestamps: Annotated[int, U64]
    ntp_hw_tx_timestamps: Annotated[int, U64]
    reserved: Annotated[bytes, octets(32)]


_STAMPERS = {"D": "daemon", "K": "kernel", "H": "hardware"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpData(Record):
    """`chronyc ntpdata` up to 4.5: the last measurement with one server, and who stamped its packets.

    offset_s: chrony's sign; use `offset_ns`. tx_stamper, rx_stamper: D, K or H; NUL where nothing was measured.
    good_count: 0 before 4.3, which has it.
    """

    remote_address: Annotated[ChronyAddress, ADDRESS]
    local_address: Annotated[ChronyAddress, ADDRESS]
    remote_port: Annotated[int, U16]
    leap: Annotated[int, U8]
    version: Annotated[int, U8]
    mode: Annotated[int, U8]
    stratum: Annotated[int, U8]
    poll: Annotated[int, I8]
    precision: Annotated[int, I8]
    root_delay_s: Annotated[float, FLOAT]
    root_dispersion_s: Annotated[float, FLOAT]
    refid: Annotated[int, U32]
    ref_time_ns: Annotated[int, TIMESPEC]
    offset_s: Annotated[float, FLOAT]
    peer_delay_s: Annotated[float, FLOAT]
    peer_dispersion_s: Annotated[float, FLOAT]
    response_time_s: Annotated[float, FLOAT]
    jitter_asymmetry: Annotated[float, FLOAT]
    flags: Annotated[int, U16]
    tx_stamper: Annotated[int, U8]
    rx_stamper: Annotated[int, U8]
    tx_count: Annotated[int, U32]
    rx_count: Annotated[int, U32]
    valid_count: Annotated[int, U32]
    good_count: Annotated[int, U32]

    @property
    def measured(self) -> bool:
        """Whether there has been a measurement at all."""
        return self.rx_stamper != 0 and self.mode != 0

    @property
    def offset_ns(self) -> int:
        """Local minus server at the last measurement."""
        return -_ns(self.offset_s)

    @property
    def transmit_stamps(self) -> str | None:
        """Who stamped the last request: 'daemon', 'kernel' or 'hardware'; None where nothing was measured."""
        return _STAMPERS.get(chr(self.tx_stamper))

    @property
    def receive_stamps(self) -> str | None:
        """Who stamped the last reply."""
        return _STAMPERS.get(chr(self.rx_stamper))


@dataclass(frozen=True, slots=True, kw_only=True)
class NtpDataWithStamps(NtpData):
    """The same from 4.6 on, with how many packets kernel and hardware stamped."""

    kernel_tx_stamps: Annotated[int, U32]
    kernel_rx_stamps: Annotated[int, U32]
    hardware_tx_stamps: Annotated[int, U32]
    hardware_rx_stamps: Annotated[int, U32]
    reserved: Annotated[bytes, octets(16)]


class AuthMode(IntEnum):
    """How the packets of a source are authenticated."""

    NONE = 0
    SYMMETRIC = 1
    NTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthData(Record):
    """`chronyc authdata` of one source. cookies: left of an NTS client; 0 of one that needs a new key exchange."""

    mode: Annotated[int, U16]
    key_type: Annotated[int, U16]
    key_id: Annotated[int, U32]
    key_length_bits: Annotated[int, U16]
    key_exchange_attempts: Annotated[int, U16]
    last_key_exchange_age_s: Annotated[int, U32]
    cookies: Annotated[int, U16]
    cookie_length: Annotated[int, U16]
    nak: Annotated[int, U16]
    pad: Annotated[int, U16]

    @property
    def mode_name(self) -> str:
        """In small letters; a mode of a later version as 'mode N'."""
        return AuthMode(self.mode).name.lower() if self.mode <= max(AuthMode) else f"mode {self.mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectData(Record):
    """`chronyc selectdata` of one source: why it is or is not used. The limits are chrony's sign."""

    refid: Annotated[int, U32]
    address: Annotated[ChronyAddress, ADDRESS]
    state_char: Annotated[int, U8]
    authentication: Annotated[int, U8]
    leap: Annotated[int, U8]
    pad: Annotated[int, U8]
    configured_options: Annotated[int, U16]
    effective_options: Annotated[int, U16]
    last_sample_age_s: Annotated[int, U32]
    score: Annotated[float, FLOAT]
    lo_limit_s: Annotated[float, FLOAT]
    hi_limit_s: Annotated[float, FLOAT]

    @property
    def state(self) -> str:
        """chronyc's letter: `*` selected, `+` combined, `D` too distant, `M` no data, `x` falseticker, ..."""
        return chr(self.state_char) if 0x20 < self.state_char < 0x7F else "?"
