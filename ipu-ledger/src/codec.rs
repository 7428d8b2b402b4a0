//! The stored form of an entry and of an cordon: one JSON object with its format version, the same in every store.

use ipu_core::{Cordon, Entry, FormatError, check_format};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Why a stored text is not what it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Another build wrote it.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// It is not an entry, or not an cordon, at all.
    #[error("a stored record is damaged")]
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

#[derive(Serialize, Deserialize)]
struct StoredCordon<E> {
    format: u32,
    #[serde(rename = "exclusion")]
    cordon: E,
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

/// The stored form of `cordon`: a line of JSON that no entry has.
#[must_use]
pub fn encode_cordon(cordon: &Cordon) -> String {
    let stored = StoredCordon {
        format: Cordon::FORMAT,
        cordon,
    };
    // As for an entry.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// The entry whose stored form is `text`.
///
/// # Errors
///
/// [`DecodeError::Format`] if another build wrote it, whatever else it is; [`DecodeError::Damaged`] if it is not an entry.
pub fn decode(text: &str) -> Result<Entry, DecodeError> {
    read(text, |stored: &Stored<Entry>| stored.format).map(|stored| stored.entry)
}

/// The cordon whose stored form is `text`.
///
/// # Errors
///
/// As [`decode`], of an cordon.
pub fn decode_cordon(text: &str) -> Result<Cordon, DecodeError> {
    read(text, |stored: &StoredCordon<Cordon>| stored.format).map(|stored| stored.cordon)
}

fn read<T: DeserializeOwned>(text: &str, format_of: fn(&T) -> u32) -> Result<T, DecodeError> {
    let stored: Result<T, _> = serde_json::from_str(text);
    // What cannot be read may tell its version all the same: then that is what is wrong.
    let format = match &stored {
        Ok(stored) => format_of(stored),
        Err(_) => {
            let version: Version = serde_json::from_str(text).map_err(DecodeError::Damaged)?;
            version.format
        }
    };
    check_format(format)?;
    stored.map_err(DecodeError::Damaged)
}

#[cfg(test)]
mod tests {
    use ipu_core::{
        CallWindow, ControllersSnapshot, JobKey, LedgerState, Owner, PartitionSpec, QueuePolicy, Request,
        Timestamp,
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
            .request(
                &request,
                &ControllersSnapshot::default(),
                &QueuePolicy::default(),
                window,
            )
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
        let error = decode(r#"{"format":3,"something":["else"]}"#).unwrap_err();
        assert!(
            matches!(error, DecodeError::Format(FormatError::Newer { found: 3 })),
            "{error}"
        );
        assert!(error.to_string().contains("format 3, newer than 2"), "{error}");
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

    #[test]
    fn an_cordon_comes_back_and_is_no_entry() {
        let cordon = Cordon::new(
            "maintenance".parse().unwrap(),
            "pod001:8090".parse().unwrap(),
            ipu_core::CordonTarget::Ipu("a1".parse().unwrap(), 3),
            "admin".parse().unwrap(),
            "a cable, \"half\" in",
        );
        let text = encode_cordon(&cordon);
        assert_eq!(decode_cordon(&text).unwrap(), cordon);
        assert!(matches!(decode(&text).unwrap_err(), DecodeError::Damaged(_)));
        assert!(matches!(
            decode_cordon(&encode(&entry())).unwrap_err(),
            DecodeError::Damaged(_)
        ));
    }
}
