//! Header field names and methods.

use super::octets::{BLOCK, Block, word_len};

/// A header field that some layer reads; every other one is [`Name::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the variants are the fields' names
pub enum Name {
    Via,
    From,
    To,
    CallId,
    CSeq,
    MaxForwards,
    Route,
    RecordRoute,
    Contact,
    ContentLength,
    ContentType,
    ProxyRequire,
    Require,
    Supported,
    Unsupported,
    RetryAfter,
    SessionExpires,
    Expires,
    Reason,
    Warning,
    Timestamp,
    Date,
    Path,
    MinSe,
    Other,
}

impl Name {
    /// How many there are, [`Name::Other`] included.
    pub const COUNT: usize = Name::Other as usize + 1;

    /// All that are known.
    const KNOWN: [Name; Name::COUNT - 1] = [
        Name::Via,
        Name::From,
        Name::To,
        Name::CallId,
        Name::CSeq,
        Name::MaxForwards,
        Name::Route,
        Name::RecordRoute,
        Name::Contact,
        Name::ContentLength,
        Name::ContentType,
        Name::ProxyRequire,
        Name::Require,
        Name::Supported,
        Name::Unsupported,
        Name::RetryAfter,
        Name::SessionExpires,
        Name::Expires,
        Name::Reason,
        Name::Warning,
        Name::Timestamp,
        Name::Date,
        Name::Path,
        Name::MinSe,
    ];

    /// From the name in a row, in any case, long or compact (RFC 3261 §7.3.3, RFC 4028 §9).
    pub fn of(name: &[u8]) -> Name {
        let Some(&first) = name.first() else {
            return Name::Other;
        };
        // Length and first letter leave at most two candidates.
        match (name.len(), first | 0x20) {
            (1, b'v') => Name::Via,
            (1, b'f') => Name::From,
            (1, b't') => Name::To,
            (1, b'i') => Name::CallId,
            (1, b'm') => Name::Contact,
            (1, b'l') => Name::ContentLength,
            (1, b'c') => Name::ContentType,
            (1, b'k') => Name::Supported,
            (1, b'x') => Name::SessionExpires,
            (2, b't') => is(name, b"To", Name::To),
            (3, b'v') => is(name, b"Via", Name::Via),
            (4, b'f') => is(name, b"From", Name::From),
            (4, b'c') => is(name, b"CSeq", Name::CSeq),
            (4, b'd') => is(name, b"Date", Name::Date),
            (4, b'p') => is(name, b"Path", Name::Path),
            (5, b'r') => is(name, b"Route", Name::Route),
            (6, b'm') => is(name, b"Min-SE", Name::MinSe),
            (6, b'r') => is(name, b"Reason", Name::Reason),
            (7, b'c') => match is(name, b"Call-ID", Name::CallId) {
                Name::Other => is(name, b"Contact", Name::Contact),
                found => found,
            },
            (7, b'r') => is(name, b"Require", Name::Require),
            (7, b'e') => is(name, b"Expires", Name::Expires),
            (7, b'w') => is(name, b"Warning", Name::Warning),
            (9, b's') => is(name, b"Supported", Name::Supported),
            (9, b't') => is(name, b"Timestamp", Name::Timestamp),
            (11, b'r') => is(name, b"Retry-After", Name::RetryAfter),
            (11, b'u') => is(name, b"Unsupported", Name::Unsupported),
            (12, b'm') => is(name, b"Max-Forwards", Name::MaxForwards),
            (12, b'r') => is(name, b"Record-Route", Name::RecordRoute),
            (12, b'c') => is(name, b"Content-Type", Name::ContentType),
            (13, b'p') => is(name, b"Proxy-Require", Name::ProxyRequire),
            (14, b'c') => is(name, b"Content-Length", Name::ContentLength),
            (15, b's') => is(name, b"Session-Expires", Name::SessionExpires),
            _ => Name::Other,
        }
    }

    /// The name that a row without control octets begins with, if it is made of letters, digits and hyphens only,
    /// its colon follows at once, and both lie within these octets: with its length. In any case, long or compact.
    #[inline(always)]
    pub(crate) fn of_row(row: &[u8; BLOCK]) -> Option<(Name, usize)> {
        let block = Block::new(row);
        let len = block.is(b':').bits().trailing_zeros() as usize;
        let [first, second, ..] = *row;
        let word = WORDS.get(place_of([first, second], len))?;
        let same = block.with(0x20).as_in(Block::new(&word.octets));
        if same.bits().trailing_ones() as usize > len {
            // Up to the colon, and nothing but letters and hyphens makes this word: a control octet could, but is not
            // there.
            return Some((word.name, len));
        }
        (len > 0 && word_len(row) == len).then_some((Name::Other, len))
    }

    /// The long form as the RFCs spell it; empty for [`Name::Other`].
    pub const fn as_str(self) -> &'static str {
        match self {
            Name::Via => "Via",
            Name::From => "From",
            Name::To => "To",
            Name::CallId => "Call-ID",
            Name::CSeq => "CSeq",
            Name::MaxForwards => "Max-Forwards",
            Name::Route => "Route",
            Name::RecordRoute => "Record-Route",
            Name::Contact => "Contact",
            Name::ContentLength => "Content-Length",
            Name::ContentType => "Content-Type",
            Name::ProxyRequire => "Proxy-Require",
            Name::Require => "Require",
            Name::Supported => "Supported",
            Name::Unsupported => "Unsupported",
            Name::RetryAfter => "Retry-After",
            Name::SessionExpires => "Session-Expires",
            Name::Expires => "Expires",
            Name::Reason => "Reason",
            Name::Warning => "Warning",
            Name::Timestamp => "Timestamp",
            Name::Date => "Date",
            Name::Path => "Path",
            Name::MinSe => "Min-SE",
            Name::Other => "",
        }
    }
}

/// A name, long or compact.
#[derive(Clone, Copy)]
#[repr(align(16))]
struct Word {
    /// In lower case, the colon behind it.
    octets: [u8; BLOCK],
    name: Name,
}

/// Where a name of so many octets stands in [`WORDS`], by the first two of it and of its colon in any case.
#[inline(always)]
const fn place_of(first: [u8; 2], len: usize) -> usize {
    // Found by trial: no two of the names share a place.
    let pair = u16::from_le_bytes(first) | 0x2020;
    let mixed = (pair as u32).wrapping_add((len as u32) << 8).wrapping_mul(0x4a90_5ec5);
    (mixed >> 26) as usize
}

/// Every name, long and compact. What is not one has no octets: they are in no row.
const WORDS: [Word; 64] = {
    const COMPACT: &[u8; 9] = b"vftimlckx";
    const MEANT: [Name; 9] = [
        Name::Via,
        Name::From,
        Name::To,
        Name::CallId,
        Name::Contact,
        Name::ContentLength,
        Name::ContentType,
        Name::Supported,
        Name::SessionExpires,
    ];
    let mut words = [Word { octets: [0; BLOCK], name: Name::Other }; 64];
    let mut i = 0;
    while i < Name::KNOWN.len() + COMPACT.len() {
        let (text, name) = if i < Name::KNOWN.len() {
            (Name::KNOWN[i].as_str().as_bytes(), Name::KNOWN[i])
        } else {
            (COMPACT.split_at(i - Name::KNOWN.len()).1.split_at(1).0, MEANT[i - Name::KNOWN.len()])
        };
        let mut octets = [0; BLOCK];
        octets[text.len()] = b':';
        let mut at = text.len();
        while at > 0 {
            at -= 1;
            octets[at] = text[at].to_ascii_lowercase();
        }
        let place = place_of([octets[0], octets[1]], text.len());
        assert!(words[place].octets[0] == 0, "two names share a place");
        words[place] = Word { octets, name };
        i += 1;
    }
    words
};

/// `found` if `name` is `full` in any case. The usual spelling is compared as whole words first: with
/// the length known when compiling, that is a few instructions.
fn is<const N: usize>(name: &[u8], full: &[u8; N], found: Name) -> Name {
    let same = <&[u8; N]>::try_from(name).is_ok_and(|name| name == full);
    if same || name.eq_ignore_ascii_case(full) { found } else { Name::Other }
}

/// Compact forms of fields that have no [`Name`] (IANA registry of SIP header fields), lower case.
const OTHER_COMPACT: [(u8, &[u8]); 11] = [
    (b'a', b"accept-contact"),
    (b'b', b"referred-by"),
    (b'd', b"request-disposition"),
    (b'e', b"content-encoding"),
    (b'j', b"reject-contact"),
    (b'n', b"identity-info"),
    (b'o', b"event"),
    (b'r', b"refer-to"),
    (b's', b"subject"),
    (b'u', b"allow-events"),
    (b'y', b"identity"),
];

/// A header field to look for, prepared once: known by number, or by its long and compact names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'n> {
    known: Name,
    long: &'n [u8],
    compact: Option<u8>,
}

impl<'n> Wanted<'n> {
    /// `name` in lower case, long or compact.
    pub(crate) fn new(name: &'n [u8]) -> Self {
        let known = Name::of(name);
        if known != Name::Other {
            return Wanted { known, long: name, compact: None };
        }
        let pair = OTHER_COMPACT
            .iter()
            .find(|(c, long)| name.eq_ignore_ascii_case(long) || name.eq_ignore_ascii_case(&[*c]));
        match pair {
            Some((compact, long)) => Wanted { known, long, compact: Some(*compact) },
            None => Wanted { known, long: name, compact: None },
        }
    }

    /// Whether a row of this number and name is meant.
    pub(crate) fn is(&self, known: Name, raw_name: &[u8]) -> bool {
        if self.known != Name::Other || known != Name::Other {
            return self.known == known && known != Name::Other;
        }
        match (raw_name, self.compact) {
            ([one], Some(compact)) => one.eq_ignore_ascii_case(&compact),
            _ => raw_name.eq_ignore_ascii_case(self.long),
        }
    }
}

/// A request method, or [`Method::Other`] for one that has no name here. Methods are case-sensitive
/// (RFC 3261 §7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the variants are the methods
pub enum Method {
    Invite,
    Ack,
    Cancel,
    Bye,
    Options,
    Register,
    Prack,
    Subscribe,
    Notify,
    Publish,
    Info,
    Refer,
    Message,
    Update,
    Other,
}

impl Method {
    /// All of them, in the order of their numbers.
    pub const ALL: [Method; 15] = [
        Method::Invite,
        Method::Ack,
        Method::Cancel,
        Method::Bye,
        Method::Options,
        Method::Register,
        Method::Prack,
        Method::Subscribe,
        Method::Notify,
        Method::Publish,
        Method::Info,
        Method::Refer,
        Method::Message,
        Method::Update,
        Method::Other,
    ];

    /// From the octets of a start line or a CSeq.
    pub fn of(method: &[u8]) -> Method {
        match method {
            b"INVITE" => Method::Invite,
            b"ACK" => Method::Ack,
            b"CANCEL" => Method::Cancel,
            b"BYE" => Method::Bye,
            b"OPTIONS" => Method::Options,
            b"REGISTER" => Method::Register,
            b"PRACK" => Method::Prack,
            b"SUBSCRIBE" => Method::Subscribe,
            b"NOTIFY" => Method::Notify,
            b"PUBLISH" => Method::Publish,
            b"INFO" => Method::Info,
            b"REFER" => Method::Refer,
            b"MESSAGE" => Method::Message,
            b"UPDATE" => Method::Update,
            _ => Method::Other,
        }
    }

    /// The method's name, or `OTHER`: for metric labels.
    pub const fn label(self) -> &'static str {
        match self {
            Method::Invite => "INVITE",
            Method::Ack => "ACK",
            Method::Cancel => "CANCEL",
            Method::Bye => "BYE",
            Method::Options => "OPTIONS",
            Method::Register => "REGISTER",
            Method::Prack => "PRACK",
            Method::Subscribe => "SUBSCRIBE",
            Method::Notify => "NOTIFY",
            Method::Publish => "PUBLISH",
            Method::Info => "INFO",
            Method::Refer => "REFER",
            Method::Message => "MESSAGE",
            Method::Update => "UPDATE",
            Method::Other => "OTHER",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row as it stands in a message, cut to one block.
    fn row(text: &str) -> [u8; BLOCK] {
        let text = [text.as_bytes(), &[b' '; BLOCK]].concat();
        std::array::from_fn(|i| text[i])
    }

    #[test]
    fn a_name_is_the_same_whichever_way_it_is_read() {
        let compact = ["v", "f", "t", "i", "m", "l", "c", "k", "x", "s", "a"];
        let others = ["Allow", "Via-X", "Vi", "Contact-ID", "CallXID", "0", "-", "Subject", "Vib"];
        let known = Name::KNOWN.map(Name::as_str);
        assert!(known.iter().all(|n| !n.is_empty()));
        for name in known.iter().chain(&compact).chain(&others) {
            for name in [name.to_string(), name.to_lowercase(), name.to_uppercase()] {
                let want = (Name::of(name.as_bytes()), name.len());
                assert_eq!(Name::of_row(&row(&format!("{name}: x"))), Some(want), "{name}");
                assert_eq!(Name::of_row(&row(&format!("{name} : x"))), None, "{name}");
            }
        }
        for odd in [": x", "Via", "a_b: x", "User-Agent-Longer: x", "\r\n", "V\u{9a}a: x"] {
            assert_eq!(Name::of_row(&row(odd)), None, "{odd}");
        }
    }
}
