//! `Licenses`: the IPUs of each model.

use super::Rules;
use crate::conf::{ConfError, ConfFiles, LicenseList, SlurmConf, closest, with_count};
use crate::render::{Model, Severity, SlurmVersion};

const LICENSES: &str = "Licenses";
/// The sign before a count that old versions take for a part of the name.
const EQUALS_SIGN: char = '=';

impl Rules<'_, '_> {
    /// Sets the licenses of models, and keeps those of other products, even if Slurm refuses them.
    pub(super) fn licenses(&mut self, models: &[Model<'_>]) {
        let list = in_force(self.conf);
        let setting = self.conf.get(LICENSES);
        let old = self.conf.value(LICENSES).unwrap_or_default();
        let has_old_sign = old.contains(EQUALS_SIGN) && self.version < SlurmVersion::EQUALS_SIGN;
        let new = models
            .iter()
            .fold(old.to_owned(), |text, model| match list.count(model.name) {
                Some(count) if count == model.ipus && !has_old_sign => text,
                _ => with_count(&text, model.name, model.ipus),
            });
        let sign = format!("Slurm {} takes `=` for a part of the name", self.version);
        if new != old {
            let counts = "Slurm counts the IPUs of a model as licenses";
            let rule = if has_old_sign { sign.as_str() } else { counts };
            self.set(LICENSES, &new, Severity::Error, rule);
        } else if has_old_sign {
            self.report(Severity::Warning, LICENSES, setting, &sign, "write name:count");
        }
    }
}

/// Returns the licenses in force.
pub(in crate::render) fn in_force(conf: &SlurmConf) -> LicenseList {
    let setting = conf.get(LICENSES);
    setting.map_or_else(LicenseList::default, |setting| conf.licenses(setting))
}

/// Returns the items that are no licenses, so that slurmctld does not start, and names that are misspelt.
pub(super) fn mistakes(conf: &SlurmConf, files: &ConfFiles) -> Vec<ConfError> {
    let list = in_force(conf);
    let mut errors = list.errors().to_vec();
    let Some(setting) = conf.get(LICENSES) else {
        return errors;
    };
    for name in unlicensed(&list, files) {
        if let Some(near) = misspelt(&list, files, name) {
            let rule = format!("has no license of {name}");
            errors.push(conf.error(setting, rule, format!("did you mean {name} instead of {near}?")));
        }
    }
    errors
}

/// Returns the mistakes of a list without a license of any model. It is the only trace of IPUs.
pub(in crate::render) fn absent(conf: &SlurmConf, files: &ConfFiles) -> Vec<ConfError> {
    let list = in_force(conf);
    let mut errors = mistakes(conf, files);
    let Some(setting) = conf.get(LICENSES) else {
        return errors;
    };
    for name in unlicensed(&list, files) {
        if misspelt(&list, files, name).is_none()
            && let Some(model) = files.model(name)
        {
            let count = model.max_ipus_per_job();
            let new = with_count(setting.value(), name, count);
            let fix = format!("write {LICENSES}={new}, if {name} has {count} IPUs");
            errors.push(conf.error(setting, format!("has no license of {name}"), fix));
        }
    }
    errors
}

/// Returns the models without a license. That of `vipu.conf` itself counts only without others.
fn unlicensed<'a>(list: &LicenseList, files: &'a ConfFiles) -> Vec<&'a str> {
    let is_only = files.models().count() == 1;
    let names = files.models().map(|(name, _)| name);
    names
        .filter(|name| is_only || files.is_own_file(name))
        .filter(|name| list.count(name).is_none() && !list.has_mistake_in(name))
        .collect()
}

/// Returns the license that probably stands for a model.
fn misspelt<'a>(list: &'a LicenseList, files: &ConfFiles, name: &str) -> Option<&'a str> {
    let others = list.items().iter().map(|license| license.name());
    closest(name, others.filter(|other| files.model(other).is_none()))
}
