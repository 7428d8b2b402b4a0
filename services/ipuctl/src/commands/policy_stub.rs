//! Replacement of `ipuctl policy` in a build without the feature `wasm`.

use crate::cli::{Format, Policy};
use crate::exit_code::{Code, Failure};
use crate::output::Output;

pub(crate) fn run(_: &Policy, _: Format, _: &Output) -> Result<Code, Failure> {
    let message =
        "this ipuctl is built without the feature `wasm`; build it by `cargo install ipuctl --features wasm`";
    Err(Failure::new(Code::Usage, message))
}
