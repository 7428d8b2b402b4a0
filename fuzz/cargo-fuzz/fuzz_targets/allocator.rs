//! `ipu_fuzz::allocator` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::allocator(bytes));
