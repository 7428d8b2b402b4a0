//! Lists of controllers: `host:port:key=value,…`.

use ipu_core::ControllerName;
use ipu_vipu_client::{ControllerEndpoint, parse_controllers};

use crate::error_messages::{check_error, text};

/// Parses the input as a list of controllers and as a single controller.
///
/// # Panics
///
/// If a parsed value does not round-trip, or an error message is empty.
pub fn controllers(bytes: &[u8]) {
    let text = text(bytes);
    match text.parse::<ControllerEndpoint>() {
        Ok(endpoint) => {
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint.clone()));
            let name = endpoint.name().as_str();
            assert_eq!(ControllerName::new(name).as_ref(), Ok(endpoint.name()));
            assert_eq!(
                name.parse::<ControllerEndpoint>()
                    .map(|parsed| parsed.name().clone()),
                Ok(endpoint.name().clone())
            );
        }
        Err(error) => check_error(&error, bytes.len()),
    }
    match parse_controllers(&text) {
        Ok(list) => {
            assert!(!list.is_empty());
            for separator in [",", "\\,"] {
                let printed: Vec<String> = list.iter().map(ToString::to_string).collect();
                assert_eq!(parse_controllers(&printed.join(separator)), Ok(list.clone()));
            }
        }
        Err(error) => check_error(&error, bytes.len()),
    }
}
