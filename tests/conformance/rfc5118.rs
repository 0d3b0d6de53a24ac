//! RFC 5118: torture test messages for IPv6.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod torture;

#[test]
fn each_torture_message_gets_an_outcome_that_its_index_allows() {
    torture::check_all("rfc5118");
}
