//! proto3 JSON where it differs from that of serde: enumerations and timestamps. The generated attributes of
//! the messages name these functions.

use core::marker::PhantomData;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serializer};
use serde_json::Value;

/// Parses the JSON of a message. Unknown fields are ignored, and null is the default of any field.
///
/// # Errors
///
/// The first error of the JSON, or of a field.
pub fn from_slice<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    let mut message: Value = serde_json::from_slice(json)?;
    // serde would accept an array of the fields, too.
    if !message.is_object() {
        return Err(serde_json::Error::custom("a message must be a JSON object"));
    }
    remove_nulls(&mut message);
    serde_json::from_value(message)
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Returns whether a field is omitted.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Enumeration of the API.
pub(super) trait WireEnum: Into<i32> + TryFrom<i32> {
    fn name(&self) -> &'static str;
    fn from_name(name: &str) -> Option<Self>;
}

macro_rules! wire_enums {
    ($($name:ident),*) => {$(
        impl WireEnum for super::$name {
            fn name(&self) -> &'static str {
                self.as_str_name()
            }

            fn from_name(name: &str) -> Option<Self> {
                Self::from_str_name(name)
            }
        }
    )*};
}
wire_enums!(
    GatewayRoutingType,
    IpuLinkRoutingType,
    PartitionOperationState,
    PartitionReadyState,
    SyncType
);

/// Field of the enumeration `E`: its name, or the number of an unknown value.
pub(super) struct EnumField<E>(PhantomData<E>);

impl<E: WireEnum> EnumField<E> {
    pub(super) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        match E::try_from(*value) {
            Ok(known) => serializer.serialize_str(known.name()),
            Err(_) => serializer.serialize_i32(*value),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Json {
            Number(i32),
            Name(String),
        }
        match Json::deserialize(deserializer)? {
            Json::Number(number) => Ok(number),
            Json::Name(name) => E::from_name(&name)
                .map(Into::into)
                .ok_or_else(|| D::Error::custom(format_args!("unknown value {name:?}"))),
        }
    }
}

/// Timestamp field: RFC 3339.
pub(super) struct TimestampField;

impl TimestampField {
    pub(super) fn serialize<S: Serializer>(
        value: &Option<prost_types::Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(time) => serializer.collect_str(time),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<prost_types::Timestamp>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::PartitionRequirements;

    #[test]
    fn a_null_is_the_default_of_its_field() {
        let empty: PartitionRequirements = from_slice(b"{}").unwrap();
        let read = |json: &str| from_slice::<PartitionRequirements>(json.as_bytes());
        let nulls = r#"{"size": null, "syncType": null, "unknown": {"a": null}}"#;
        assert_eq!(read(nulls).unwrap(), empty);
        for invalid in ["[]", "null", r#"{"size": "x"}"#] {
            assert!(read(invalid).is_err(), "{invalid}");
        }
    }
}
