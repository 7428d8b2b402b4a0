//! The target that the variable `IPU_FUZZ_TARGET` names, under libFuzzer.
#![no_main]

use std::sync::OnceLock;

use ipu_fuzz::{TARGETS, Target};

static TARGET: OnceLock<&Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.get_or_init(named_target).run)(bytes));

fn named_target() -> &'static Target {
    let name = std::env::var("IPU_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        panic!("IPU_FUZZ_TARGET={name:?}: must be one of {}", names.join(", "))
    })
}
