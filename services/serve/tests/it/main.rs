//! The server over real connections.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod certificates;
mod connections;
