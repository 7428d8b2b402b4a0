//! The stored form of an entry: one short line of JSON, with short names and without default values.
//!
//! A ConfigMap holds 1 MiB, and a ledger may have thousands of entries. The id is not repeated: it is the
//! key.

use ipu_core::{Entry, PartitionId};
use ipu_ledger::{DecodeError, decode, encode};
use serde_json::{Map, Value, json};

/// Short names of fields. Other fields keep their names, so that fields new to the ledger are kept too.
const NAMES: [(&str, &str); 16] = [
    ("account", "ac"),
    ("attempt", "a"),
    ("controller", "c"),
    ("heldSince", "h"),
    ("instance", "i"),
    ("maxRuntimeMillis", "mr"),
    ("owner", "o"),
    ("passedOver", "po"),
    ("places", "p"),
    ("priority", "pr"),
    ("since", "m"),
    ("spec", "z"),
    ("state", "s"),
    ("ticket", "t"),
    ("unsettled", "u"),
    ("unsettledReset", "ur"),
];

/// The format version.
const VERSION: &str = "v";

/// Duration from the grant of its IPUs to [`since`](Entry::since): shorter than the time of the grant.
const HELD_FOR: &str = "hf";

/// Returns the stored form of `entry`, without its id.
pub(super) fn compact(entry: &Entry) -> String {
    let stored: Value = serde_json::from_str(&encode(entry)).unwrap_or_default();
    let mut short = Map::new();
    short.insert(VERSION.into(), stored["format"].clone());
    let Some(fields) = stored["entry"].as_object() else {
        // This cannot be decoded: decoding reports that.
        return Value::Object(short).to_string();
    };
    for (name, value) in fields {
        if name == "id" || is_default(name, value) {
            continue;
        }
        let value = match name.as_str() {
            "owner" => pack_owner(value),
            "places" => pack_places(value),
            "spec" => pack_spec(value),
            "state" => pack_state(value),
            _ => None,
        }
        .unwrap_or_else(|| value.clone());
        short.insert(shorten(name).into(), value);
    }
    if let (Some(held), Some(since)) = (fields.get("heldSince"), fields.get("since"))
        && let (Some(held), Some(since)) = (held.as_u64(), since.as_u64())
        && let Some(held_for) = since.checked_sub(held)
    {
        short.remove(shorten("heldSince"));
        short.insert(HELD_FOR.into(), held_for.into());
    }
    Value::Object(short).to_string()
}

/// Parses the stored form `text` of the entry `id`.
///
/// # Errors
///
/// As [`decode`].
pub(super) fn expand(id: &PartitionId, text: &str) -> Result<Entry, DecodeError> {
    let mut short: Map<String, Value> = serde_json::from_str(text).map_err(DecodeError::Damaged)?;
    let format = short.remove(VERSION).unwrap_or_default();
    let held_for = short.remove(HELD_FOR);
    let mut fields = Map::new();
    for (name, value) in short {
        let name = lengthen(&name);
        let value = match name {
            "owner" => unpack_owner(&value),
            "places" => unpack_places(&value),
            "spec" => unpack_spec(&value),
            "state" => unpack_state(&value),
            _ => None,
        }
        .unwrap_or(value);
        fields.insert(name.into(), value);
    }
    if let Some(held_for) = held_for.as_ref().and_then(Value::as_u64)
        && let Some(since) = fields.get("since").and_then(Value::as_u64)
        && let Some(held) = since.checked_sub(held_for)
    {
        fields.insert("heldSince".into(), held.into());
    }
    fields.insert("id".into(), id.as_str().into());
    decode(&json!({ "format": format, "entry": fields }).to_string())
}

fn shorten(name: &str) -> &str {
    NAMES
        .iter()
        .find(|(long, _)| *long == name)
        .map_or(name, |(_, short)| short)
}

fn lengthen(name: &str) -> &str {
    NAMES
        .iter()
        .find(|(_, short)| *short == name)
        .map_or(name, |(long, _)| long)
}

/// Returns whether the field has its default value and is omitted.
fn is_default(name: &str, value: &Value) -> bool {
    match name {
        "instance" | "attempt" | "passedOver" | "ticket" | "priority" => *value == json!(0),
        "preemptible" => *value == json!(false),
        "placed" => *value == json!("controller"),
        _ => false,
    }
}

/// `["IPUJob","default","mnist","beb81bbe-…"]`.
fn pack_owner(owner: &Value) -> Option<Value> {
    let job = &owner["job"];
    let parts = [&owner["kind"], &job["namespace"], &job["name"], &job["uid"]];
    let is_complete = owner.as_object()?.len() == 2 && job.as_object()?.len() == 3;
    (is_complete && parts.iter().all(|part| part.is_string())).then(|| json!(parts))
}

fn unpack_owner(owner: &Value) -> Option<Value> {
    match owner.as_array()?.as_slice() {
        [kind, namespace, name, uid] => Some(json!({
            "kind": kind, "job": {"namespace": namespace, "name": name, "uid": uid},
        })),
        _ => None,
    }
}

/// Returns only the size if all other fields have their defaults.
fn pack_spec(spec: &Value) -> Option<Value> {
    let default_spec = json!({"size": spec["size"], "gcds": 1, "replicas": 1, "reconfigurable": false});
    (*spec == default_spec).then(|| spec["size"].clone())
}

fn unpack_spec(spec: &Value) -> Option<Value> {
    spec.is_u64().then(|| json!({ "size": spec }))
}

/// Returns only the name of the state if it has no other fields.
fn pack_state(state: &Value) -> Option<Value> {
    (state.as_object()?.len() == 1).then(|| state["is"].clone())
}

fn unpack_state(state: &Value) -> Option<Value> {
    state.is_string().then(|| json!({ "is": state }))
}

/// `0:0-3,1:7`: link domains and IPUs as ascending or descending runs, in their order.
fn pack_places(places: &Value) -> Option<Value> {
    let mut runs: Vec<(u64, u64, u64)> = Vec::new();
    for place in places.as_array()? {
        if place.as_object()?.len() != 2 {
            return None;
        }
        let (domain, ipu) = (place["linkDomain"].as_u64()?, place["ipu"].as_u64()?);
        match runs.last_mut() {
            Some((of, first, last)) if *of == domain && continues_run(*first, *last, ipu) => *last = ipu,
            _ => runs.push((domain, ipu, ipu)),
        }
    }
    let runs: Vec<String> = runs
        .into_iter()
        .map(|(domain, first, last)| match first == last {
            true => format!("{domain}:{first}"),
            false => format!("{domain}:{first}-{last}"),
        })
        .collect();
    (!runs.is_empty()).then(|| runs.join(",").into())
}

/// Returns whether `next` continues the run from `first` to `last`.
fn continues_run(first: u64, last: u64, next: u64) -> bool {
    (first <= last && Some(next) == last.checked_add(1))
        || (first >= last && Some(next) == last.checked_sub(1))
}

fn unpack_places(places: &Value) -> Option<Value> {
    /// Longer than any partition: a longer run is damaged, and must not exhaust memory.
    const MAX_ITEMS: u64 = 4096;
    let mut all = Vec::new();
    for run in places.as_str()?.split(',') {
        let (domain, ipus) = run.split_once(':')?;
        let domain: u64 = domain.parse().ok()?;
        let (first, last) = ipus.split_once('-').unwrap_or((ipus, ipus));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if first.abs_diff(last) > MAX_ITEMS {
            return None;
        }
        let place = |ipu: u64| json!({"linkDomain": domain, "ipu": ipu});
        match first <= last {
            true => all.extend((first..=last).map(place)),
            false => all.extend((last..=first).rev().map(place)),
        }
    }
    Some(all.into())
}

#[cfg(test)]
mod tests {
    use ipu_core::FormatError;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const STORED: &str = r#"{"format":1,"entry":{"id":"p-mnist-training-0-yxyf5xnew52l27nw","owner":{"kind":"IPUJob",
        "job":{"namespace":"default","name":"mnist-training","uid":"beb81bbe-2309-494a-9e28-2a75a704be15"}},
        "instance":0,"attempt":0,"spec":{"size":4,"gcds":1,"replicas":1,"reconfigurable":false},
        "state":{"is":"active"},"passedOver":0,"controller":"pod001:8090","places":[{"linkDomain":0,"ipu":4},
        {"linkDomain":0,"ipu":5},{"linkDomain":0,"ipu":6},{"linkDomain":0,"ipu":7}],"placed":"controller",
        "ticket":4711,"since":1700000030000,"heldSince":1700000000000,"priority":0,"preemptible":false}}"#;

    /// Entries in every state and with every field, by the build before the names of the code changed.
    const STORED_RECORDS: &str = include_str!("../../tests/data/ledger-format-1.json");

    #[test]
    fn records_of_format_1_are_read_and_written_unchanged() {
        let records: BTreeMap<String, String> = serde_json::from_str(STORED_RECORDS).unwrap();
        assert_eq!(records.len(), 21);
        for (id, text) in records {
            let entry = expand(&PartitionId::new(id).unwrap(), &text).unwrap();
            assert_eq!(compact(&entry), text);
        }
    }

    fn id() -> PartitionId {
        PartitionId::new("p-mnist-training-0-yxyf5xnew52l27nw").unwrap()
    }

    #[test]
    fn an_entry_is_one_short_readable_line() {
        let entry = decode(STORED).unwrap();
        let text = compact(&entry);
        assert_eq!(
            text,
            r#"{"c":"pod001:8090","hf":30000,"m":1700000030000,"o":["IPUJob","default","mnist-training","beb81bbe-2309-494a-9e28-2a75a704be15"],"p":"0:4-7","s":"active","t":4711,"v":1,"z":4}"#
        );
        assert_eq!(expand(&id(), &text).unwrap(), entry);
        assert!(text.len() < 180, "{}", text.len());
    }

    #[test]
    fn places_keep_their_order_inside_and_outside_of_runs() {
        for ipus in [
            vec![7],
            vec![0, 1, 2, 3],
            vec![3, 2, 1, 0],
            vec![0, 1, 0, 1, 5, 4, 9],
            vec![0, 0, 1],
        ] {
            let places: Vec<_> = ipus
                .iter()
                .map(|ipu| json!({"linkDomain": 2, "ipu": ipu}))
                .collect();
            let packed = pack_places(&json!(places)).unwrap();
            assert_eq!(unpack_places(&packed), Some(places.into()), "{packed}");
        }
    }

    #[test]
    fn a_newer_format_version_and_damaged_entries_are_refused() {
        let newer = expand(&id(), r#"{"v":99,"zz":"what is this"}"#).unwrap_err();
        assert!(
            matches!(newer, DecodeError::Format(FormatError::Newer { found: 99 })),
            "{newer}"
        );
        for damaged in [
            "",
            "[]",
            "{}",
            r#"{"v":1}"#,
            r#"{"v":1,"z":4,"s":"active","m":1,"surprise":2}"#,
        ] {
            let error = expand(&id(), damaged).unwrap_err();
            assert!(matches!(error, DecodeError::Damaged(_)), "{damaged}: {error}");
        }
        assert_eq!(unpack_places(&json!("0:0-18446744073709551615")), None);
    }

    /// Values that resemble those of an entry, with damage.
    fn field() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<u64>().prop_map(Value::from),
            any::<i8>().prop_map(Value::from),
            "[a-z0-9:,-]{0,12}".prop_map(Value::from),
            proptest::collection::vec("[a-zA-Z/]{0,4}", 0..6).prop_map(Value::from),
            Just(json!({"is": "intent", "operation": "create", "fence": 7})),
            Just(json!({"size": 4})),
            Just(Value::Null),
        ]
    }

    proptest! {
        #[test]
        fn any_stored_text_is_parsed_or_refused(text in ".{0,60}", values in proptest::collection::vec(field(), 20)) {
            let _ = expand(&id(), &text);
            let names = NAMES.map(|(_, short)| short).into_iter().chain([HELD_FOR, "v", "id", "is"]);
            let mut fields: Map<String, Value> = names.map(String::from).zip(values).collect();
            let _ = expand(&id(), &Value::from(fields.clone()).to_string());
            fields.insert(VERSION.into(), 1.into());
            if let Ok(entry) = expand(&id(), &Value::from(fields).to_string()) {
                prop_assert_eq!(expand(&id(), &compact(&entry)).unwrap(), entry);
            }
        }

        #[test]
        fn an_entry_with_one_damaged_field_is_parsed_or_refused(index in 0_usize..9, value in field()) {
            let fields: Map<String, Value> = serde_json::from_str(&compact(&decode(STORED).unwrap())).unwrap();
            let name = fields.keys().nth(index).unwrap().clone();
            let mut damaged = fields;
            damaged.insert(name, value);
            if let Ok(entry) = expand(&id(), &Value::from(damaged).to_string()) {
                prop_assert_eq!(expand(&id(), &compact(&entry)).unwrap(), entry);
            }
        }
    }
}
