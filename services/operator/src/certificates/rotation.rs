//! Shared rotation state of all operators, and its transitions (pure).
//!
//! A generation serves only after its CA has been in every caBundle without interruption for the trust
//! delay. The CA of its predecessor stays in the bundle for operators that have not observed the change.
//! Therefore a name served by a trusted certificate stays served, whatever is renewed or added. Only if
//! nothing works is a generation used at once: the certificate has expired, or it covers no name under
//! which the API server calls.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::issue::CertBundle;

/// Format version of the stored state; a newer version is not modified.
const FORMAT: u32 = 1;

/// Maximum interval between two checks of the state.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Renewal schedule of certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rotation {
    /// Validity of a certificate; default 90 days.
    pub validity: Duration,
    /// Time before the expiry at which a new certificate is created; default 30 days.
    pub renew_before: Duration,
    /// Time for which the CA of a new certificate is trusted before it serves; default one minute, in which
    /// every API server observes the CA.
    pub trust_delay: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            validity: Duration::from_secs(90 * DAY),
            renew_before: Duration::from_secs(30 * DAY),
            trust_delay: Duration::from_secs(60),
        }
    }
}

/// Content of the Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RotationState {
    format: u32,
    pub(super) current: CertBundle,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<StagedBundle>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous_ca: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StagedBundle {
    generation: CertBundle,
    /// Time since which its CA is in every caBundle, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trusted_since: Option<u64>,
}

/// Facts that determine the next state.
pub(super) struct RotationFacts<'a> {
    /// Seconds since 1970.
    pub(super) now: u64,
    /// Names that the certificate must cover, including `called_names`.
    pub(super) names: &'a BTreeSet<String>,
    /// Names under which the API server calls the webhooks.
    pub(super) called_names: &'a BTreeSet<String>,
    /// Certificate that this operator serves.
    pub(super) served: Option<&'a CertBundle>,
    /// Whether the [bundle](RotationState::bundle) of the state is in every caBundle.
    pub(super) trusted: bool,
    pub(super) rotation: &'a Rotation,
}

/// Error in the stored state.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("the certificates were written by a newer operator (format {format}) and are not modified")]
    Newer { format: u32 },
    #[error("the certificates cannot be read: {0}")]
    Invalid(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Formatted {
    format: u32,
}

impl RotationState {
    pub(super) fn read(bytes: &[u8]) -> Result<Self, StateError> {
        let Formatted { format } = serde_json::from_slice(bytes)?;
        if format > FORMAT {
            return Err(StateError::Newer { format });
        }
        Ok(serde_json::from_slice(bytes)?)
    }

    fn initial(current: CertBundle, previous_ca: Option<String>) -> Self {
        Self {
            format: FORMAT,
            current,
            next: None,
            previous_ca,
        }
    }

    /// Returns the state with `generation` staged as the next one.
    fn staged(mut self, generation: CertBundle) -> Self {
        self.next = Some(StagedBundle {
            generation,
            trusted_since: None,
        });
        self
    }

    /// Returns every CA that a request may need, in PEM.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.as_ref().map(|next| next.generation.ca.as_str());
        let previous = self.previous_ca.as_deref();
        let mut bundle = self.current.ca.clone();
        for ca in next.into_iter().chain(previous) {
            if !bundle.ends_with('\n') {
                bundle.push('\n');
            }
            bundle.push_str(ca);
        }
        bundle
    }

    /// Returns the delay until the next check if no event occurs.
    pub(super) fn pause(&self, now: u64, rotation: &Rotation) -> Duration {
        let at = match &self.next {
            Some(StagedBundle {
                trusted_since: Some(since),
                ..
            }) => since + rotation.trust_delay.as_secs(),
            Some(_) => now + rotation.trust_delay.as_secs(),
            None => self.renewal(rotation),
        };
        Duration::from_secs(at.saturating_sub(now)).clamp(Duration::from_secs(1), CHECK_INTERVAL)
    }

    fn renewal(&self, rotation: &Rotation) -> u64 {
        self.current
            .not_after
            .saturating_sub(rotation.renew_before.as_secs())
    }
}

/// Returns the state to write, if it differs from `state`; `create` issues certificates for the given
/// names.
pub(super) fn next_state<E>(
    state: Option<&RotationState>,
    facts: &RotationFacts<'_>,
    create: impl FnOnce(&BTreeSet<String>) -> Result<CertBundle, E>,
) -> Result<Option<RotationState>, E> {
    let now = facts.now;
    let is_valid = |generation: &&CertBundle| now < generation.not_after;
    let Some(state) = state else {
        let created = create(facts.names)?;
        // Deleting the Secret triggers a renewal; the trusted certificate serves until the new one is
        // ready.
        let served = facts.served.filter(is_valid);
        return Ok(Some(match served {
            Some(served) => RotationState::initial(served.clone(), None).staged(created),
            None => RotationState::initial(created, None),
        }));
    };
    let current = &state.current;
    let next = state.next.as_ref().map(|next| &next.generation);
    if !is_valid(&current) {
        // The certificate has expired, so no working connection can break.
        let created = match next.filter(is_valid) {
            Some(next) => next.clone(),
            None => create(facts.names)?,
        };
        return Ok(Some(RotationState::initial(created, Some(current.ca.clone()))));
    }
    let newest = next.unwrap_or(current);
    if !facts.names.is_subset(&newest.names) {
        // Operators with other settings may run at the same time, and their names must be covered too.
        let names = facts.names.union(&newest.names).cloned().collect();
        return Ok(Some(state.clone().staged(create(&names)?)));
    }
    let mut changed = state.clone();
    let Some(next) = &mut changed.next else {
        if now < state.renewal(facts.rotation) {
            return Ok(None);
        }
        return Ok(Some(changed.staged(create(facts.names)?)));
    };
    if !facts.trusted {
        // The trust delay restarts once the CA is trusted again.
        return Ok(next.trusted_since.take().map(|_| changed));
    }
    let no_name_served = !facts.called_names.is_empty() && facts.called_names.is_disjoint(&current.names);
    match next.trusted_since {
        None if !no_name_served => {
            next.trusted_since = Some(now);
            Ok(Some(changed))
        }
        Some(since) if !no_name_served && now < since + facts.rotation.trust_delay.as_secs() => Ok(None),
        _ => {
            let previous = Some(current.ca.clone());
            Ok(Some(RotationState::initial(next.generation.clone(), previous)))
        }
    }
}

#[cfg(test)]
mod rotation_proptest;
#[cfg(test)]
mod tests;
