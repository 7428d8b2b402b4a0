//! The repository's own rules, as tests.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod exit_codes;
mod guide;
mod language;
mod layers;
mod modules;
mod monitoring;
mod names;
mod tidy;
