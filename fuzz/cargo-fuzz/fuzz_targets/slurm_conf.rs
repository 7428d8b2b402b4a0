//! `ipu_fuzz::slurm_conf` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ipu_fuzz::slurm_conf(bytes));
