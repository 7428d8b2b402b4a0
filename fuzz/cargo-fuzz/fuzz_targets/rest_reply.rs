//! `ipu_fuzz::rest_reply` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::rest_reply(bytes));
