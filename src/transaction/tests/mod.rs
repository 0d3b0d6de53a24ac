#![allow(clippy::unwrap_used)]

mod keys;
mod lanes;

use super::{ClientInvite, ClientNonInvite, ServerInvite, ServerNonInvite};

#[test]
fn machines_are_small() {
    assert!(size_of::<ClientInvite>() <= 56, "{}", size_of::<ClientInvite>());
    assert!(size_of::<ClientNonInvite>() <= 56, "{}", size_of::<ClientNonInvite>());
    assert!(size_of::<ServerInvite>() <= 56, "{}", size_of::<ServerInvite>());
    assert!(size_of::<ServerNonInvite>() <= 40, "{}", size_of::<ServerNonInvite>());
}
