//! Generic resources as Slurm writes them.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use ipu_slurm::{Gres, GresError, GresList, Indices, TresList};

use crate::error_messages::{said_of, text};

/// One resource, a list of them, trackable resources, and a set of indices, all of the same text.
///
/// # Panics
///
/// If what is read does not print as itself, or an error points outside of the text.
pub fn gres(bytes: &[u8]) {
    let text = text(bytes);
    prints_as_itself::<Gres>(&text);
    prints_as_itself::<GresList>(&text);
    prints_as_itself::<TresList>(&text);
    prints_as_itself::<Indices>(&text);
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

fn prints_as_itself<T: FromStr<Err = GresError> + Display + Debug + PartialEq>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse::<T>(), Ok(value)),
        Err(error) => {
            said_of(&error, 100);
            assert!(
                (1..=text.chars().count() + 1).contains(&error.position),
                "{error:?}"
            );
            assert!(!error.rule.is_empty() && !error.fix.is_empty());
        }
    }
}
