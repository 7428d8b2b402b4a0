//! What the operators agree on, and its moves: pure.
//!
//! The rule: a generation is used for serving only when its authority has been in every caBundle for a while without a break; its
//! predecessor's authority stays there, for operators that have not heard of it yet. So a name that is answered by a trusted
//! certificate goes on being answered by one, whatever is renewed or added. What is made in haste is made where nothing works
//! any more: the certificate has ended, or none of the names that the API server asks under is in it.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::issue::CertBundle;

/// The form of the state that is written; a newer one is left alone.
const FORMAT: u32 = 1;

/// The longest that nobody looks at the state.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// When certificates are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rotation {
    /// How long a certificate is valid: 90 days unless set.
    pub validity: Duration,
    /// How long before its end a new one is made: 30 days unless set.
    pub before: Duration,
    /// How long the authority of a new one is trusted before it is used: a minute unless set, in which every API server hears of
    /// it.
    pub settle: Duration,
}

impl Default for Rotation {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Self {
            validity: Duration::from_secs(90 * DAY),
            before: Duration::from_secs(30 * DAY),
            settle: Duration::from_secs(60),
        }
    }
}

/// What is in the Secret.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RotationState {
    format: u32,
    pub(super) current: CertBundle,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<NextAction>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    previous_ca: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NextAction {
    generation: CertBundle,
    /// Since when its authority is known to be in every caBundle, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trusted_since: Option<u64>,
}

/// What a move is decided by.
pub(super) struct RotationFacts<'a> {
    /// Seconds since 1970.
    pub(super) now: u64,
    /// The names that the certificate has to be for, those of `asked` included.
    pub(super) names: &'a BTreeSet<String>,
    /// The names that the API server asks under.
    pub(super) asked: &'a BTreeSet<String>,
    /// What this operator serves with.
    pub(super) served: Option<&'a CertBundle>,
    /// Whether the [bundle](State::bundle) of the state is everywhere.
    pub(super) trusted: bool,
    pub(super) rotation: &'a Rotation,
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error("the certificates were written by a newer operator (format {format}); they are left alone")]
    Newer { format: u32 },
    #[error("the certificates cannot be read: {0}")]
    Broken(#[from] serde_json::Error),
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

    fn beginning(current: CertBundle, previous_ca: Option<String>) -> Self {
        Self {
            format: FORMAT,
            current,
            next: None,
            previous_ca,
        }
    }

    /// The same with this one to come.
    fn staged(mut self, generation: CertBundle) -> Self {
        self.next = Some(NextAction {
            generation,
            trusted_since: None,
        });
        self
    }

    /// Every authority that a request may meet, in PEM.
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

    /// After how long the state has to be looked at again if nothing happens.
    pub(super) fn pause(&self, now: u64, rotation: &Rotation) -> Duration {
        let at = match &self.next {
            Some(NextAction {
                trusted_since: Some(since),
                ..
            }) => since + rotation.settle.as_secs(),
            Some(_) => now + rotation.settle.as_secs(),
            None => self.renewal(rotation),
        };
        Duration::from_secs(at.saturating_sub(now)).clamp(Duration::from_secs(1), CHECK_INTERVAL)
    }

    fn renewal(&self, rotation: &Rotation) -> u64 {
        self.current.not_after.saturating_sub(rotation.before.as_secs())
    }
}

/// The state to write next, if another one than `state`; `make` makes certificates for the names that it is given.
pub(super) fn next_state<E>(
    state: Option<&RotationState>,
    facts: &RotationFacts<'_>,
    make: impl FnOnce(&BTreeSet<String>) -> Result<CertBundle, E>,
) -> Result<Option<RotationState>, E> {
    let now = facts.now;
    let lasts = |generation: &&CertBundle| now < generation.not_after;
    let Some(state) = state else {
        let new = make(facts.names)?;
        // Whoever takes the Secret away has certificates renewed, and those that are trusted serve until then.
        let served = facts.served.filter(lasts);
        return Ok(Some(match served {
            Some(served) => RotationState::beginning(served.clone(), None).staged(new),
            None => RotationState::beginning(new, None),
        }));
    };
    let current = &state.current;
    let next = state.next.as_ref().map(|next| &next.generation);
    if !lasts(&current) {
        // Nothing works any more, so that there is nothing to be careful of.
        let new = match next.filter(lasts) {
            Some(next) => next.clone(),
            None => make(facts.names)?,
        };
        return Ok(Some(RotationState::beginning(new, Some(current.ca.clone()))));
    }
    let newest = next.unwrap_or(current);
    if !facts.names.is_subset(&newest.names) {
        // Operators of other settings may run beside this one for a while, and must be content too.
        let names = facts.names.union(&newest.names).cloned().collect();
        return Ok(Some(state.clone().staged(make(&names)?)));
    }
    let mut changed = state.clone();
    let Some(next) = &mut changed.next else {
        if now < state.renewal(facts.rotation) {
            return Ok(None);
        }
        return Ok(Some(changed.staged(make(facts.names)?)));
    };
    if !facts.trusted {
        // The time begins anew when it is trusted again.
        return Ok(next.trusted_since.take().map(|_| changed));
    }
    let nobody_answered = !facts.asked.is_empty() && facts.asked.is_disjoint(&current.names);
    match next.trusted_since {
        None if !nobody_answered => {
            next.trusted_since = Some(now);
            Ok(Some(changed))
        }
        Some(since) if !nobody_answered && now < since + facts.rotation.settle.as_secs() => Ok(None),
        _ => {
            let previous = Some(current.ca.clone());
            Ok(Some(RotationState::beginning(next.generation.clone(), previous)))
        }
    }
}

#[cfg(test)]
mod rotation_proptest;
#[cfg(test)]
mod tests;
