//! Build steps that `./x` calls.
fn main() {}
