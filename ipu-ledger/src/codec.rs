//! The stored form of entries and cordons: one JSON object with its format version, identical in every store.

use ipu_core::{Cordon, Entry, FormatError, check_format};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The error for a stored record that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The record has the format of another build.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The record is neither an entry nor a cordon.
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

/// Returns the stored form of `entry`: one line of JSON.
#[must_use]
pub fn encode(entry: &Entry) -> String {
    let stored = Stored {
        format: entry.format(),
        entry,
    };
    // An entry has string keys and finite numbers only, so this cannot fail. If it did, decoding would
    // return an error.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Returns the stored form of `cordon`: one line of JSON, distinct from every entry.
#[must_use]
pub fn encode_cordon(cordon: &Cordon) -> String {
    let stored = StoredCordon {
        format: Cordon::FORMAT,
        cordon,
    };
    // As for an entry, this cannot fail.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Parses the stored form of an entry.
///
/// # Errors
///
/// [`DecodeError::Format`] if another build wrote the record, even if the rest is unknown too.
/// [`DecodeError::Damaged`] if the record is not an entry.
pub fn decode(text: &str) -> Result<Entry, DecodeError> {
    read(text, |stored: &Stored<Entry>| stored.format).map(|stored| stored.entry)
}

/// Parses the stored form of a cordon.
///
/// # Errors
///
/// As for [`decode`], for a cordon.
pub fn decode_cordon(text: &str) -> Result<Cordon, DecodeError> {
    read(text, |stored: &StoredCordon<Cordon>| stored.format).map(|stored| stored.cordon)
}

fn read<T: DeserializeOwned>(text: &str, format_of: fn(&T) -> u32) -> Result<T, DecodeError> {
    let stored: Result<T, _> = serde_json::from_str(text);
    // A record that does not parse may still carry a version. A wrong version then takes precedence.
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
    fn an_encoded_entry_decodes_to_itself() {
        assert_eq!(decode(&encode(&entry())).unwrap(), entry());
    }

    #[test]
    fn a_newer_format_is_refused_by_its_number_even_if_other_fields_are_unknown() {
        let error = decode(r#"{"format":5,"something":["else"]}"#).unwrap_err();
        assert!(
            matches!(error, DecodeError::Format(FormatError::Newer { found: 5 })),
            "{error}"
        );
        assert!(error.to_string().contains("format 5, newer than 4"), "{error}");
        assert!(matches!(
            decode(r#"{"format":0}"#).unwrap_err(),
            DecodeError::Format(FormatError::Older { found: 0 })
        ));
    }

    #[test]
    fn an_entry_with_an_unknown_field_is_refused_as_damaged() {
        let text = encode(&entry()).replacen("\"ticket\"", "\"surprise\":1,\"ticket\"", 1);
        assert!(matches!(decode(&text).unwrap_err(), DecodeError::Damaged(_)));
    }

    #[test]
    fn an_encoded_cordon_decodes_to_itself_and_is_not_an_entry() {
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
