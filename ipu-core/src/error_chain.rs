//! Errors with their sources, for messages.

use alloc::string::{String, ToString as _};
use core::error::Error;
use core::fmt;

/// Displays an error and its sources on one line. Leaves out a source that an error before it repeats.
#[derive(Clone, Copy, Debug)]
pub struct ErrorChain<'a>(pub &'a dyn Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text: String = self.0.to_string();
        let mut next = self.0.source();
        while let Some(source) = next {
            let part = source.to_string();
            if !text.contains(&part) {
                text.push_str(": ");
                text.push_str(&part);
            }
            next = source.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Layer(&'static str, Option<&'static Self>);

    impl fmt::Display for Layer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for Layer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self.1? as &dyn Error)
        }
    }

    #[test]
    fn a_source_that_an_error_repeats_is_left_out() {
        const REFUSED: Layer = Layer("connection refused", None);
        const CONNECT: Layer = Layer("connect: connection refused", Some(&REFUSED));
        const CALL: Layer = Layer("cannot read the version", Some(&CONNECT));
        assert_eq!(
            ErrorChain(&CALL).to_string(),
            "cannot read the version: connect: connection refused"
        );
    }
}
