//! Limits of namespaces and accounts, from the settings file.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::Namespace;
use ipu_core::allocator::{Policy, Quota, QuotaSubject, Quotas};

use super::{QuotaSetting, SettingError, Settings, invalid_setting};

/// Wildcard for all namespaces, in the namespaces of an account.
const ALL_NAMESPACES: &str = "*";

/// Quotas, highest priorities and allowed accounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    quotas: Quotas,
    max_priority: i32,
    max_priorities: BTreeMap<Namespace, i32>,
    accounts: BTreeMap<String, BTreeSet<Namespace>>,
}

impl Limits {
    /// Validates the limits of these settings.
    ///
    /// # Errors
    ///
    /// [`SettingError`] of the first invalid limit.
    pub(crate) fn of(settings: &Settings) -> Result<Self, SettingError> {
        let mut limits = Self {
            quotas: Quotas::new(),
            max_priority: i32::MAX,
            max_priorities: BTreeMap::new(),
            accounts: BTreeMap::new(),
        };
        for quota in &settings.quotas {
            limits.add_quota(quota)?;
        }
        let mut default = None;
        for priority in &settings.priorities {
            let previous = match &priority.namespace {
                Some(name) => {
                    let name = namespace("priorities", name)?;
                    limits.max_priorities.insert(name, priority.max_priority)
                }
                None => default.replace(priority.max_priority),
            };
            if previous.is_some() {
                let name = priority.namespace.as_deref().unwrap_or_default();
                return Err(invalid_setting("priorities", name, "is a duplicate"));
            }
        }
        limits.max_priority = default.unwrap_or(i32::MAX);
        Ok(limits)
    }

    fn add_quota(&mut self, quota: &QuotaSetting) -> Result<(), SettingError> {
        let subject = match (&quota.namespace, &quota.account) {
            (Some(name), None) if quota.namespaces.is_empty() => {
                QuotaSubject::Namespace(namespace("quotas", name)?)
            }
            (Some(name), None) => {
                return Err(invalid_setting(
                    "quotas",
                    name,
                    "namespaces needs an account; remove it",
                ));
            }
            (None, Some(name)) => {
                self.add_account(name, &quota.namespaces)?;
                QuotaSubject::Account(name.clone())
            }
            _ => {
                return Err(invalid_setting(
                    "quotas",
                    "",
                    "each entry must name either a namespace or an account",
                ));
            }
        };
        let limits = Quota {
            max_ipus: quota.max_ipus,
            max_partitions: quota.max_partitions,
        };
        match self.quotas.insert(subject.clone(), limits) {
            Some(_) => Err(invalid_setting("quotas", &subject.to_string(), "is a duplicate")),
            None => Ok(()),
        }
    }

    /// Allows only owners of `namespaces` to charge the account.
    fn add_account(&mut self, account: &str, namespaces: &[String]) -> Result<(), SettingError> {
        if namespaces.is_empty() {
            return Err(invalid_setting(
                "quotas",
                account,
                "an account must name the namespaces that may charge it; add `namespaces: [NAME, ...]`, or `namespaces: [\"*\"]` for all",
            ));
        }
        if namespaces.iter().any(|name| name == ALL_NAMESPACES) {
            return Ok(());
        }
        let namespaces = namespaces.iter().map(|name| namespace("quotas", name));
        self.accounts
            .insert(account.to_owned(), namespaces.collect::<Result<_, _>>()?);
        Ok(())
    }

    /// Replaces the limits of `rules`.
    pub(crate) fn apply(&self, rules: &mut Policy) {
        rules.quotas.clone_from(&self.quotas);
        rules.namespaces.max_priority = self.max_priority;
        rules.namespaces.max_priorities.clone_from(&self.max_priorities);
        rules.namespaces.accounts.clone_from(&self.accounts);
    }
}

/// Parses a namespace. `*` is a name for the library, and a limit for it has no effect.
fn namespace(setting: &'static str, name: &str) -> Result<Namespace, SettingError> {
    if name == ALL_NAMESPACES {
        let fix = "is not a namespace: name each one, or leave out `namespace` of a priority for all others";
        return Err(invalid_setting(setting, name, fix));
    }
    name.parse()
        .map_err(|error: ipu_core::NameError| invalid_setting(setting, name, &error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::read_settings;

    fn limits(text: &str) -> Result<Limits, String> {
        Limits::of(&read_settings(text)?).map_err(|error| error.to_string())
    }

    #[test]
    fn limits_set_quotas_priorities_and_accounts() {
        let text = "quotas:\n- {account: course-7, max-ipus: 8, namespaces: [a, b]}\n- {account: all, namespaces: ['*']}\n\
                    - {namespace: a, max-partitions: 2}\npriorities:\n- {namespace: b, max-priority: 0}\n- {max-priority: 10}\n";
        let mut rules = Policy::default();
        rules.namespaces.max_queued = 7;
        limits(text).unwrap().apply(&mut rules);
        assert_eq!(rules.quotas.len(), 3);
        let namespaces = &rules.namespaces;
        assert_eq!((namespaces.max_queued, namespaces.max_priority), (7, 10));
        let (a, b): (Namespace, Namespace) = ("a".parse().unwrap(), "b".parse().unwrap());
        assert_eq!(namespaces.max_priorities, BTreeMap::from([(b.clone(), 0)]));
        let accounts = BTreeMap::from([("course-7".to_owned(), BTreeSet::from([a, b]))]);
        assert_eq!(namespaces.accounts, accounts);
        // Limits that are removed from the file no longer apply.
        limits("").unwrap().apply(&mut rules);
        assert_eq!(rules.namespaces.max_priority, i32::MAX);
        assert!(rules.quotas.is_empty() && rules.namespaces.accounts.is_empty());
    }

    #[test]
    fn invalid_limits_are_refused_with_a_fix() {
        for (text, expected) in [
            (
                "quotas: [{account: course-7, max-ipus: 8}]",
                "quotas = \"course-7\": an account must name the namespaces that may charge it; add `namespaces: [NAME, ...]`",
            ),
            (
                "quotas: [{namespace: a, namespaces: [b]}]",
                "quotas = \"a\": namespaces needs an account; remove it",
            ),
            (
                "quotas: [{max-ipus: 8}]",
                "each entry must name either a namespace or an account",
            ),
            (
                "quotas: [{namespace: a}, {namespace: a}]",
                "quotas = \"namespace a\": is a duplicate",
            ),
            (
                "priorities: [{namespace: a, max-priority: 1}, {namespace: a, max-priority: 2}]",
                "priorities = \"a\": is a duplicate",
            ),
            (
                "priorities: [{max-priority: 1}, {max-priority: 2}]",
                "priorities = \"\": is a duplicate",
            ),
            ("priorities: [{namespace: a}]", "max-priority"),
            (
                "priorities: [{namespace: '*', max-priority: 0}]",
                "priorities = \"*\": is not a namespace: name each one, or leave out `namespace`",
            ),
            (
                "quotas: [{namespace: '*', max-ipus: 0}]",
                "quotas = \"*\": is not a namespace",
            ),
        ] {
            let error = limits(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
