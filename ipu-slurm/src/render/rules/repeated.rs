//! Keys that `slurm.conf` and its included files set more than once, although Slurm uses one of the values.

use crate::conf::{SlurmConf, SlurmSetting, with_count};
use crate::render::{Finding, Severity, SlurmVersion};

const LICENSES: &str = "Licenses";
/// The keys with a list of items.
const LISTS: [&str; 7] = [
    "AccountingStorageTRES",
    "GresTypes",
    "JobSubmitPlugins",
    "LaunchParameters",
    LICENSES,
    "PrologFlags",
    "PropagateResourceLimitsExcept",
];
/// The keys with one value.
const SINGLE: [&str; 4] = [
    "PlugStackConfig",
    "PrologEpilogTimeout",
    "PrologTimeout",
    "TaskProlog",
];
/// The hooks that may have several lines from [`SlurmVersion::SEVERAL_HOOKS`] on.
const HOOKS: [&str; 4] = ["Epilog", "EpilogSlurmctld", "Prolog", "PrologSlurmctld"];

/// Returns a warning for each line that overrides another one.
pub(in crate::render) fn repeated(conf: &SlurmConf, version: SlurmVersion) -> Vec<Finding> {
    let hooks = HOOKS.iter().filter(|_| version < SlurmVersion::SEVERAL_HOOKS);
    let keys = LISTS.iter().chain(&SINGLE).chain(hooks);
    keys.flat_map(|key| repetitions(conf, key)).collect()
}

fn repetitions(conf: &SlurmConf, key: &str) -> Vec<Finding> {
    let Some(last) = conf.get(key) else {
        return Vec::new();
    };
    // A file that is included twice has each line twice.
    let mut earlier: Vec<&SlurmSetting> = Vec::new();
    for setting in conf.all(key) {
        let is_same =
            |other: &&SlurmSetting| (other.file(), other.range()) == (setting.file(), setting.range());
        if !is_same(&last) && !earlier.iter().any(is_same) {
            earlier.push(setting);
        }
    }
    let finding = |first: &SlurmSetting| {
        let place = conf.place(first);
        let both = joined(key, first.value(), last.value());
        let fix = match both {
            _ if first.value() == last.value() => "remove this line".to_owned(),
            Some(both) => format!("write {key}={both} there and remove this line"),
            None => "remove one of the lines".to_owned(),
        };
        let rule = format!("is set in {place} too, and Slurm uses the last");
        Finding {
            severity: Severity::Warning,
            error: conf.error(last, rule, fix),
        }
    };
    earlier.into_iter().map(finding).collect()
}

/// Returns the list with the items of both lines; none for a key with one value.
fn joined(key: &str, first: &str, last: &str) -> Option<String> {
    if !LISTS.contains(&key) {
        return None;
    }
    if key == LICENSES {
        let list = crate::conf::LicenseList::parse(key, last);
        let items = list.items().iter();
        return Some(items.fold(first.to_owned(), |text, item| {
            with_count(&text, item.name(), item.count())
        }));
    }
    let mut items: Vec<&str> = first.split(',').filter(|item| !item.is_empty()).collect();
    for item in last.split(',').filter(|item| !item.is_empty()) {
        if !items.iter().any(|known| known.eq_ignore_ascii_case(item)) {
            items.push(item);
        }
    }
    Some(items.join(","))
}
