"""The scenarios, in the order they are run in. Each takes a World and leaves problems and figures in it."""
import alto
import calls
import change
import failover
import programs
import secure
import sight

ALL = {
    "plain-udp": calls.plain_udp,
    "plain-tcp": calls.plain_tcp,
    "udp-to-tcp": calls.udp_to_tcp,
    "tcp-to-udp": calls.tcp_to_udp,
    "from-peer": calls.from_peer,
    "cancel": calls.cancel,
    "busy": calls.busy,
    "redirect": calls.redirect,
    "reinvite": calls.reinvite,
    "late-200": calls.late_200,
    "late-180": calls.late_180,
    "large-sdp": calls.large_sdp,
    "large-udp": calls.large_udp,
    "refused": failover.refused,
    "black-hole": failover.black_hole,
    "says-503": failover.says_503,
    "tcp-reset": failover.tcp_reset,
    "tcp-black-hole": failover.tcp_black_hole,
    "dns-outage": failover.dns_outage,
    "kamailio": programs.kamailio,
    "baresip": programs.baresip,
    "tls-kamailio": secure.tls_kamailio,
    "tls-sipp": secure.tls_sipp,
    "tls-openssl": secure.tls_openssl,
    "tls-way-back": secure.tls_way_back,
    "tls-renew": secure.tls_renew,
    "alto-auth": alto.alto_auth,
    "capture": sight.capture,
    "hep": sight.hep,
    "change-reload": change.change_reload,
    "change-drain": change.change_drain,
    "change-upgrade": change.change_upgrade,
    "change-upgrade-tcp": change.change_upgrade_tcp,
}

QUICK = ["plain-udp", "udp-to-tcp", "cancel", "refused", "black-hole", "says-503", "tcp-reset", "kamailio",
         "tls-openssl", "tls-way-back"]
