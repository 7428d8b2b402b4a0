//! Slurm generic resources.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use ipu_slurm::{Gres, GresError, GresList};

use crate::error_messages::{check_error, text};

/// Parses the input as one resource, and as a resource list.
///
/// # Panics
///
/// If a parsed value does not round-trip, or an error position is outside the text.
pub fn gres(bytes: &[u8]) {
    let text = text(bytes);
    assert_round_trip::<Gres>(&text);
    assert_round_trip::<GresList>(&text);
    if let Ok(list) = text.parse::<GresList>() {
        for gres in list.items() {
            assert!(
                gres.ipus()
                    .is_ok_and(|ipus| u64::from(ipus.get()) == gres.count())
                    || gres.ipus().is_err()
            );
        }
    }
}

fn assert_round_trip<T: FromStr<Err = GresError> + Display + Debug + PartialEq>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse::<T>(), Ok(value)),
        Err(error) => {
            check_error(&error, 100);
            assert!(
                (1..=text.chars().count() + 1).contains(&error.position),
                "{error:?}"
            );
            assert!(!error.rule.is_empty() && !error.fix.is_empty());
        }
    }
}
