//! Which shard owns a message, told from as few of its octets as will do.

use std::sync::{Arc, LazyLock};

use ahash::RandomState;
use memchr::memchr;
use memchr::memmem::Finder;

use crate::flow::Origin;
use crate::transaction::Branch;
use crate::wire::{Framing, Index, Limits, Message};

use super::io::ReadAhead;
use super::{SPARE, Shard};

/// The shard that owns a message: by a keyed hash of its Call-ID, found without parsing the rest.
/// A message without one belongs to shard 0.
pub fn shard_of(bytes: &[u8], secret: u64, shards: usize) -> usize {
    if shards <= 1 {
        return 0;
    }
    if let Some(shard) = branch_shard(bytes).filter(|shard| *shard < shards) {
        return shard;
    }
    plain_call_id(bytes).or_else(|| find_call_id(bytes)).map_or(0, |id| owner_of(id, secret, shards))
}

/// Reads messages before their shards are locked: the lock is held for less long, and what names the shard need not
/// be searched for.
#[derive(Debug, Default)]
pub struct Reader {
    /// Room for the indexes of the next messages.
    spare: Vec<Arc<Index>>,
    /// The shard visited last has been refusing calls lately: their ACKs are better not read.
    refusing: bool,
}

impl Reader {
    /// The shard that owns a message, as by [`shard_of`], and the message as read for it. Under overload ACKs are
    /// left to the shard, which drops those to its own refusals unread.
    pub fn read<'a>(
        &mut self,
        origin: &Origin,
        bytes: &[u8],
        limits: &'a Limits,
        secret: u64,
        shards: usize,
    ) -> (usize, Option<ReadAhead<'a>>) {
        let mut index = self.spare.pop().unwrap_or_default();
        let unread = self.refusing && bytes.starts_with(b"ACK ");
        let room = if unread { None } else { Arc::get_mut(&mut index) };
        let Some(room) = room else {
            self.spare.push(index);
            return (shard_of(bytes, secret, shards), None);
        };
        let read = room.read(bytes, limits, framing_of(origin));
        let owner = match read {
            Ok(()) => owner_of_read(&Message::new(bytes, &index), secret, shards),
            Err(_) => 0,
        };
        (owner, Some(ReadAhead { index, read, limits }))
    }
}

impl Shard {
    /// Hands out the room that it has too much of, and tells whether it refuses calls.
    pub fn give_back(&mut self, reader: &mut Reader) {
        reader.refusing = self.core.is_refusing();
        // One stays, for the messages that the shard reads itself.
        while reader.spare.len() < SPARE && self.spare.len() > 1 {
            reader.spare.extend(self.spare.pop());
        }
    }
}

/// How a message's end was found.
pub(super) fn framing_of(origin: &Origin) -> Framing {
    if origin.conn.is_some() { Framing::Stream } else { Framing::Datagram }
}

fn owner_of_read(msg: &Message<'_>, secret: u64, shards: usize) -> usize {
    let named =
        if msg.is_request() { None } else { msg.top_via().and_then(|via| Branch::shard_of(via.branch()?)) };
    match named.map(usize::from) {
        Some(shard) if shard < shards => shard,
        _ if msg.call_id().is_empty() => 0,
        _ => owner_of(msg.call_id(), secret, shards),
    }
}

/// Of a response to a request of ours: the shard that its branch names (it is the one that owns the call).
fn branch_shard(bytes: &[u8]) -> Option<usize> {
    static BRANCH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b";branch="));
    const NEAR: usize = 512;
    if !bytes.starts_with(b"SIP/2.0 ") {
        return None;
    }
    let at = BRANCH.find(bytes.get(..NEAR.min(bytes.len()))?)? + b";branch=".len();
    // Any other response than one to a branch of ours is dropped, whoever gets it.
    Branch::shard_of(bytes.get(at..)?).map(usize::from)
}

/// The value of a Call-ID written in the usual way: no other row can be taken for it.
fn plain_call_id(bytes: &[u8]) -> Option<&[u8]> {
    static ROW: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\nCall-ID: "));
    static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
    let at = ROW.find(bytes)?;
    if END.find(bytes.get(..at)?).is_some() {
        // In the body.
        return None;
    }
    let value = bytes.get(at + b"\r\nCall-ID: ".len()..)?;
    let text = value.get(..memchr(b'\n', value)?)?.trim_ascii();
    (!text.is_empty()).then_some(text)
}

/// The shard that owns a Call-ID.
pub(super) fn owner_of(call_id: &[u8], secret: u64, shards: usize) -> usize {
    if shards <= 1 {
        return 0;
    }
    let hash = RandomState::with_seeds(secret, !secret, secret.rotate_left(32), 0x5be).hash_one(call_id);
    usize::try_from(hash % u64::try_from(shards).unwrap_or(1)).unwrap_or(0)
}

/// The value of the first Call-ID row, in any spelling that the wire layer accepts.
fn find_call_id(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    loop {
        let at = memchr(b'\n', rest)?;
        rest = rest.get(at + 1..)?;
        let first = rest.first()?;
        if *first == b'\r' {
            return None;
        }
        if !matches!(first, b'c' | b'C' | b'i' | b'I') {
            continue;
        }
        let end = memchr(b':', rest)?;
        let name = rest.get(..end)?.trim_ascii_end();
        if !(name.eq_ignore_ascii_case(b"call-id") || name.eq_ignore_ascii_case(b"i")) {
            continue;
        }
        let mut value = rest.get(end + 1..)?;
        loop {
            let line = memchr(b'\n', value).unwrap_or(value.len());
            let text = value.get(..line)?.trim_ascii();
            if !text.is_empty() {
                return Some(text);
            }
            // Folded right behind the colon: the value stands on the next line.
            value = value.get(line + 1..)?;
            if !matches!(value.first(), Some(b' ' | b'\t')) {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_call_id_is_found_in_every_spelling() {
        for text in [
            "OPTIONS sip:a SIP/2.0\r\nCall-ID: x@y\r\n\r\n",
            "OPTIONS sip:a SIP/2.0\r\nContact: <sip:a>\r\ncALL-id \t:   x@y  \r\n\r\n",
            "SIP/2.0 200 OK\r\nCSeq: 1 A\r\ni:x@y\r\n\r\n",
            "SIP/2.0 200 OK\r\nVia: a\r\n ;b\r\nCall-ID:\r\n x@y\r\n\r\n",
        ] {
            assert_eq!(find_call_id(text.as_bytes()), Some(&b"x@y"[..]), "{text}");
        }
        let plain = b"OPTIONS sip:a SIP/2.0\r\nTo: a\r\nCall-ID:  x@y \r\n\r\n";
        assert_eq!((plain_call_id(plain), find_call_id(plain)), (Some(&b"x@y"[..]), Some(&b"x@y"[..])));
        let body = b"NOTIFY sip:a SIP/2.0\r\ni: a\r\n\r\nSIP/2.0 200 OK\r\nCall-ID: b\r\n\r\n";
        assert_eq!((plain_call_id(body), find_call_id(body)), (None, Some(&b"a"[..])));
        assert_eq!(find_call_id(b"OPTIONS sip:a SIP/2.0\r\nTo: a\r\n\r\nCall-ID: body"), None);
        assert_eq!(find_call_id(b"garbage"), None);
    }

    #[test]
    fn a_response_goes_to_the_shard_that_its_branch_names_and_only_one_of_ours_does() {
        let response = |branch: &str| {
            format!("SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP a;branch={branch}\r\nCall-ID: {branch}@x\r\n\r\n")
        };
        for shard in 0..4 {
            let ours = response(Branch::mint(shard, 1, 2, 3, 4).as_str());
            assert_eq!(shard_of(ours.as_bytes(), 42, 4), usize::from(shard));
        }
        for branch in [Branch::mint(4, 1, 2, 3, 4).as_str(), "z9hG4bKx001", &"0001".repeat(12)] {
            let id = format!("{branch}@x");
            assert_eq!(
                shard_of(response(branch).as_bytes(), 42, 4),
                owner_of(id.as_bytes(), 42, 4),
                "{branch}"
            );
        }
    }

    #[test]
    fn a_call_stays_with_one_shard_and_many_calls_spread() {
        let message = |n: usize| format!("INVITE sip:a SIP/2.0\r\nCall-ID: {n}@x\r\n\r\n");
        let mut seen = [0usize; 4];
        for n in 0..4000 {
            let m = message(n);
            let shard = shard_of(m.as_bytes(), 42, 4);
            assert_eq!(shard, shard_of(m.replace("Call-ID: ", "i:").as_bytes(), 42, 4));
            seen[shard] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }

    fn over_udp() -> Origin {
        let here = "192.0.2.1:5060".parse().unwrap();
        Origin {
            transport: crate::flow::Transport::Udp,
            listener: crate::flow::ListenerId(0),
            remote: here,
            local: here,
            conn: None,
            identity: None,
        }
    }

    #[test]
    fn a_message_read_ahead_belongs_to_the_same_shard() {
        let mut reader = Reader::default();
        let mut read = |text: &str, refusing: bool| {
            let limits = Limits::default();
            reader.refusing = refusing;
            let (owner, ahead) = reader.read(&over_udp(), text.as_bytes(), &limits, 42, 4);
            assert_eq!(owner, shard_of(text.as_bytes(), 42, 4), "{text}");
            if let Some(ahead) = ahead.as_ref() {
                assert_eq!(
                    ahead.read.is_ok(),
                    Index::parse(text.as_bytes(), &limits, Framing::Datagram).is_ok()
                );
            }
            let has = ahead.is_some();
            reader.spare.extend(ahead.map(|a| a.index));
            has
        };
        for n in 0..40 {
            for id in ["Call-ID: ", "i:", "CALL-ID:\r\n  "] {
                let rows =
                    format!("Via: SIP/2.0/UDP a;branch=z9hG4bK{n}\r\n{id}{n}@x\r\nContent-Length: 0\r\n\r\n");
                for refusing in [false, true] {
                    assert!(read(&format!("INVITE sip:a SIP/2.0\r\n{rows}"), refusing));
                    assert!(read(&format!("SIP/2.0 200 OK\r\n{rows}"), refusing));
                    let ack = format!("ACK sip:a SIP/2.0\r\n{rows}");
                    assert_eq!(read(&ack, refusing), !refusing, "under overload it is left to the shard");
                }
            }
            let ours = Branch::mint(n % 5, 1, 2, 3, 4);
            let via = format!("Via: SIP/2.0/UDP a;rport;branch={}\r\n", ours.as_str());
            assert!(read(&format!("SIP/2.0 180 Ringing\r\n{via}Call-ID: {n}@y\r\n\r\n"), false));
        }
        for odd in
            ["", "\r\n\r\n", "garbage", "OPTIONS sip:a SIP/2.0\r\nTo: a\r\n\r\n", "INVITE sip:a SIP/2.0\r\n"]
        {
            assert!(read(odd, false));
        }
        assert_eq!(reader.spare.len(), 1, "one at a time: one is enough");
    }
}
