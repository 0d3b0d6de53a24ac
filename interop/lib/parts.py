"""The SIP messages of the SIPp scenarios: `@PART@` in a file under sipp/ stands for one of these."""

SDP = """v=0
      o=- 53655765 2353687637 IN IP4 [local_ip]
      s=-
      c=IN IP4 [local_ip]
      t=0 0
      m=audio 40000 RTP/AVP 8 0 101
      a=rtpmap:8 PCMA/8000
      a=rtpmap:0 PCMU/8000
      a=rtpmap:101 telephone-event/8000
      a=ptime:20
"""


def large_sdp(size):
    """An SDP body of at least `size` octets, as a client with many ICE candidates would send."""
    out, n = SDP, 0
    while len(out.replace("      ", "")) < size:
        n += 1
        out += f"      a=candidate:{n} 1 UDP {2130706431 - n} 192.0.2.{n % 250 + 1} {40000 + n} typ host generation 0\n"
    return out


def send(text, retrans=False, sdp=False, extra=""):
    body = "Content-Type: application/sdp\n      Content-Length: [len]\n\n      @SDP@" if sdp else "Content-Length: 0\n"
    attr = (' retrans="500"' if retrans else "") + (" " + extra if extra else "")
    return f"<send{attr}>\n    <![CDATA[\n\n      {text}{body}\n    ]]>\n  </send>"


VIA = "Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch]\n      "
CONTACT = "Contact: <sip:sipp@[local_ip]:[local_port];transport=[transport]>\n      "
FROM = "From: \"Alice\" <sip:+15557650001@core.test>;tag=[pid]u[call_number]\n      "
COMMON = "Call-ID: [call_id]\n      "
ECHO = "[last_Via:]\n      [last_Record-Route:]\n      [last_From:]\n      "
ECHO2 = "[last_Call-ID:]\n      [last_CSeq:]\n      "


def request(method, cseq, retrans, sdp=False, contact=False):
    """A request in the dialog that this SIPp began."""
    return send(f"{method} [next_url] SIP/2.0\n      {VIA}[routes]\n      "
                f"{FROM}To: <sip:+15551230001@@DOMAIN@>[peer_tag_param]\n      {COMMON}CSeq: {cseq} "
                f"{method}\n      Max-Forwards: 70\n      {CONTACT if contact else ''}", retrans, sdp)


def callee_request(method, cseq, retrans, sdp=False, contact=False):
    """A request in the dialog that this SIPp answered: $from and $to hold the INVITE's header fields."""
    return send(f"{method} [next_url] SIP/2.0\n      {VIA}[routes]\n      From: [$to];tag=[pid]s[call_number]\n"
                f"      To: [$from]\n      {COMMON}CSeq: {cseq} {method}\n      Max-Forwards: 70\n"
                f"      {CONTACT if contact else ''}", retrans, sdp)


def response(code, reason, retrans=False, sdp=False, tag=True, more=""):
    to = "[last_To:];tag=[pid]s[call_number]" if tag else "[last_To:]"
    return send(f"SIP/2.0 {code} {reason}\n      {ECHO}{to}\n      {ECHO2}{CONTACT if code < 300 else ''}{more}",
                retrans, sdp)


PARTS = {
    "INVITE": send(f"INVITE sip:+15551230001@@DOMAIN@ SIP/2.0\n      {VIA}"
                   f"{FROM}To: <sip:+15551230001@@DOMAIN@>\n      {COMMON}CSeq: 1 INVITE\n      {CONTACT}Max-Forwards: 70\n"
                   f"      Allow: INVITE, ACK, CANCEL, BYE, OPTIONS\n      Supported: replaces\n      "
                   f"X-Probe: left;as=it;is\n      ", True, True),
    "ACK": request("ACK", 1, False),
    "BYE": request("BYE", 2, True),
    "REINVITE": request("INVITE", 2, True, True, True),
    "REACK": request("ACK", 2, False),
    "BYE3": request("BYE", 3, True),
    "CANCEL": send(f"CANCEL sip:+15551230001@@DOMAIN@ SIP/2.0\n      "      # [branch-4]: the INVITE is 4 steps before
                   f"Via: SIP/2.0/[transport] [local_ip]:[local_port];branch=[branch-4]\n      {FROM}"
                   f"To: <sip:+15551230001@@DOMAIN@>\n      {COMMON}CSeq: 1 CANCEL\n      Max-Forwards: 70\n      ", True),
    "ACK_FAILURE": send(f"ACK sip:+15551230001@@DOMAIN@ SIP/2.0\n      [last_Via:]\n      {FROM}[last_To:]\n      "
                        f"{COMMON}CSeq: 1 ACK\n      Max-Forwards: 70\n      "),
    "180": response(180, "Ringing"),
    "200": response(200, "OK", True, True),
    "200IN": response(200, "OK", True, True, tag=False),
    "200BYE": response(200, "OK", tag=False),
    "200CANCEL": response(200, "OK", tag=True),
    "487": send(f"SIP/2.0 487 Request Terminated\n      Via: [$via]\n      Via: [$via2]\n      @VIA3@From: [$from]\n      "
                f"To: [$to];tag=[pid]s[call_number]\n      Call-ID: [call_id]\n      CSeq: 1 INVITE\n      ", True),
    "503": response(503, "Service Unavailable", True),
    "REJECT": send(f"SIP/2.0 @CODE@ @REASON@\n      {ECHO}[last_To:];tag=[pid]s[call_number]\n      {ECHO2}@MORE@", True),
    "KEEP": """<action>
      <ereg regexp=".*" search_in="hdr" header="Via:" assign_to="via"/>
      <ereg regexp=".*" search_in="hdr" header="Via:" occurrence="2" assign_to="via2"/>
      @KEEP_VIA3@
      <ereg regexp=".*" search_in="hdr" header="From:" assign_to="from"/>
      <ereg regexp=".*" search_in="hdr" header="To:" assign_to="to"/>
    </action>""",
    # A response must hold as many Vias as the request: these two for one more proxy on the way.
    "ANOTHER_VIA": "Via: [$via3]\n      ",
    "KEEP_ANOTHER_VIA": '<ereg regexp=".*" search_in="hdr" header="Via:" occurrence="3" assign_to="via3"/>',
    "CALLEE_REINVITE": callee_request("INVITE", 1, True, True, True),
    "CALLEE_ACK": callee_request("ACK", 1, False),
}


def expand(text, values):
    """`text` with its parts and the scenario's own values put in. REJECT's Contact line is the value MORE."""
    all_values = dict(PARTS, SDP=SDP, DOMAIN="udp.peer.test", MORE="", VIA3="", KEEP_VIA3="")
    all_values.update(values)
    for _ in range(3):                  # parts hold values, and values parts
        for k, v in all_values.items():
            text = text.replace(f"@{k}@", str(v))
    return text
