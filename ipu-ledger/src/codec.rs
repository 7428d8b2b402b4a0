//! The stored form of an entry: one JSON object with its format version, the same in every store.

use ipu_core::{Entry, FormatError, check_format};
use serde::{Deserialize, Serialize};

/// Why a stored text is not an entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Another build wrote it.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is not an entry at all.
    #[error("a stored entry is damaged")]
    Damaged(#[source] serde_json::Error),
}

#[derive(Deserialize)]
struct Version {
    format: u32,
}

#[derive(Serialize, Deserialize)]
struct Stored<E> {
    format: u32,
    entry: E,
}

/// The stored form of `entry`: a line of JSON.
#[must_use]
pub fn encode(entry: &Entry) -> String {
    let stored = Stored {
        format: Entry::FORMAT,
        entry,
    };
    // An entry has string keys and finite numbers only, so this cannot fail; and if it did, decoding would say so.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// The entry whose stored form is `text`.
///
/// # Errors
///
/// [`DecodeError::Format`] if another build wrote it, whatever else it is; [`DecodeError::Damaged`] if it is not an entry.
pub fn decode(text: &str) -> Result<Entry, DecodeError> {
    let stored: Result<Stored<Entry>, _> = serde_json::from_str(text);
    // What cannot be read as an entry may tell its version all the same: then that is what is wrong.
    let format = match &stored {
        Ok(stored) => stored.format,
        Err(_) => {
            let version: Version = serde_json::from_str(text).map_err(DecodeError::Damaged)?;
            version.format
        }
    };
    check_format(format)?;
    Ok(stored.map_err(DecodeError::Damaged)?.entry)
}

#[cfg(test)]
mod tests {
    use ipu_core::{
        CallWindow, JobKey, LedgerState, LineRules, Owner, PartitionSpec, Request, Timestamp, World,
    };

    use super::*;

    fn entry() -> Entry {
        let owner = Owner {
            kind: "Test".into(),
            job: JobKey::new("ns", "job", "uid").unwrap(),
        };
        let request = Request::of_instance(owner, 0, PartitionSpec::of_size(4.try_into().unwrap()));
        let window = CallWindow {
            now: Timestamp::from_millis(7),
            settle: std::time::Duration::ZERO,
        };
        let step = LedgerState::default()
            .request(&request, &World::default(), &LineRules::default(), window)
            .unwrap();
        match step.changes.into_iter().next() {
            Some(ipu_core::Change::Put(entry)) => Entry::clone(&entry),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(decode(&encode(&entry())).unwrap(), entry());
    }

    #[test]
    fn a_newer_form_is_refused_by_its_number_even_if_nothing_else_is_understood() {
        let error = decode(r#"{"format":2,"something":["else"]}"#).unwrap_err();
        assert!(
            matches!(error, DecodeError::Format(FormatError::Newer { found: 2 })),
            "{error}"
        );
        assert!(error.to_string().contains("format 2, newer than 1"), "{error}");
        assert!(matches!(
            decode(r#"{"format":0}"#).unwrap_err(),
            DecodeError::Format(FormatError::Older { found: 0 })
        ));
    }

    #[test]
    fn an_unknown_field_is_damage_and_never_dropped_silently() {
        let text = encode(&entry()).replacen("\"ticket\"", "\"surprise\":1,\"ticket\"", 1);
        assert!(matches!(decode(&text).unwrap_err(), DecodeError::Damaged(_)));
    }
}
