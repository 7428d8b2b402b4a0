//! The bundle that belongs to this program. Its objects restore an installation of its own version only:
//! those of an older bundle would downgrade a newer installation.

use semver::Version;

use super::super::finding::Fix;

/// Version of this program and of its bundle.
const OWN: &str = env!("CARGO_PKG_VERSION");

/// Parses `1.2.3` or `v1.2.3`, also with a pre-release.
pub(super) fn parse(text: &str) -> Option<Version> {
    text.strip_prefix('v').unwrap_or(text).parse().ok()
}

/// Returns whether this program is older than `version`.
pub(super) fn is_older_than(version: &str) -> bool {
    parse(version).is_some_and(|version| parse(OWN).is_some_and(|own| own < version))
}

/// Returns advice instead of a command if the bundle is older than one of these versions.
pub(super) fn too_old<'a>(versions: impl IntoIterator<Item = &'a str>) -> Option<Fix> {
    let versions = versions.into_iter().filter_map(parse);
    let newest = versions.max()?;
    is_older_than(&newest.to_string()).then(|| use_version(&newest.to_string()))
}

/// Returns advice instead of a command unless the installation has the version of the bundle.
pub(super) fn other_than(version: Option<&str>) -> Option<Fix> {
    match version {
        Some(text) if parse(text) == parse(OWN) => None,
        Some(text) if parse(text).is_some() => Some(use_version(text)),
        _ => Some(Fix::advice(format!(
            "The version of the installation is not known: use its own manifests or chart. This is kubectl ipu {OWN}."
        ))),
    }
}

fn use_version(version: &str) -> Fix {
    Fix::advice(format!(
        "Use kubectl ipu of version {version}, in the bundle of that version: its command restores this version. This \
         is {OWN}, whose objects would change the version of the installation."
    ))
}
