//! Lists of controllers: `host:port:key=value,…`.

use ipu_core::ControllerName;
use ipu_vipu_client::{ControllerEndpoint, parse_controllers};

use crate::error_messages::{said_of, text};

/// A list of controllers, and the same text as one of them.
///
/// # Panics
///
/// If what is read does not print as itself, or an error says nothing.
pub fn controllers(bytes: &[u8]) {
    let text = text(bytes);
    match text.parse::<ControllerEndpoint>() {
        Ok(endpoint) => {
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint.clone()));
            let name = endpoint.name().as_str();
            assert_eq!(ControllerName::new(name).as_ref(), Ok(endpoint.name()));
            assert_eq!(
                name.parse::<ControllerEndpoint>().map(|one| one.name().clone()),
                Ok(endpoint.name().clone())
            );
        }
        Err(error) => said_of(&error, bytes.len()),
    }
    match parse_controllers(&text) {
        Ok(list) => {
            assert!(!list.is_empty());
            for separator in [",", "\\,"] {
                let printed: Vec<String> = list.iter().map(ToString::to_string).collect();
                assert_eq!(parse_controllers(&printed.join(separator)), Ok(list.clone()));
            }
        }
        Err(error) => said_of(&error, bytes.len()),
    }
}
