//! `ipu_fuzz::ledger_entries` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::ledger_entries(bytes));
