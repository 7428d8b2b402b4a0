//! Keys of a changed settings file that a running proxy does not apply.

use std::collections::{BTreeMap, BTreeSet};

/// Keys that the proxy rereads while it runs.
const RELOADED: [&str; 2] = ["quotas", "priorities"];

/// Returns the keys whose values differ between the settings files `started` and `changed`, and which need a
/// restart. Both are valid settings files.
pub(crate) fn keys_for_restart(started: &str, changed: &str) -> Vec<String> {
    let (started, changed) = (values(started), values(changed));
    let keys: BTreeSet<&String> = started.keys().chain(changed.keys()).collect();
    let needs_restart =
        |key: &&String| !RELOADED.contains(&key.as_str()) && started.get(*key) != changed.get(*key);
    keys.into_iter().filter(needs_restart).cloned().collect()
}

fn values(text: &str) -> BTreeMap<String, serde_json::Value> {
    if text.trim().is_empty() {
        return BTreeMap::new();
    }
    serde_saphyr::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_need_a_restart_except_quotas_and_priorities() {
        let started =
            "placement: first-fit\npreemption: true\nquotas: [{namespace: a, max-ipus: 4}]\nport: 80\n";
        let changed = "placement: best-fit\nport: 80\npriorities: [{max-priority: 0}]\n\
                       placements:\n  \"pod1:8090\": delegated\n";
        assert_eq!(
            keys_for_restart(started, changed),
            ["placement", "placements", "preemption"]
        );
        assert!(keys_for_restart(started, &format!("# a comment\n{started}")).is_empty());
        assert_eq!(keys_for_restart("", "preemption: true"), ["preemption"]);
        assert_eq!(keys_for_restart("preemption: true", ""), ["preemption"]);
    }
}
