//! RFC 4475: session initiation protocol torture test messages.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod torture;

#[test]
fn each_torture_message_gets_an_outcome_that_its_index_allows() {
    torture::check_all("rfc4475");
}
