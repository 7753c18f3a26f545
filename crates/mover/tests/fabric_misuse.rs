//! Misuse that the compiler refuses.

#[test]
fn memory_that_peers_can_reach_cannot_be_borrowed_and_what_was_taken_back_cannot_be_used() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/fabric_misuse/*.rs");
}
