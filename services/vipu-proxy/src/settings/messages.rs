//! Messages for errors of the settings file, without terms of the YAML library.

use std::borrow::Cow;

use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

/// Formats an error as the rule that the file breaks.
pub(super) struct SettingsMessages;

impl MessageFormatter for SettingsMessages {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key} occurs twice; remove one of them").into()
            }
            Error::InvalidScalar { ty: "boolean", .. } => "must be true or false, without quotes".into(),
            Error::InvalidScalar { .. } => "must be a whole number that is not negative".into(),
            Error::Unexpected {
                expected: "string scalar",
                ..
            } => "must be one text; put it in quotes".into(),
            other => UserMessageFormatter.format_message(other),
        }
    }
}
