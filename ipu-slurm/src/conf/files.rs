//! All configuration files of a cluster.

use std::collections::{BTreeMap, BTreeSet};

use ipu_core::job::{ErrorList, Violation};

use super::cluster::{ClusterConf, ModelConf};
use super::error::{ConfError, at_beginning};
use super::values::is_name;

/// The name of the model that `vipu.conf` describes.
const DEFAULT_MODEL: &str = "vipu";

/// The configuration of a cluster: `vipu.conf` and a file for each model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfFiles {
    cluster: ClusterConf,
    models: BTreeMap<String, ModelConf>,
}

impl ConfFiles {
    /// Parses `vipu.conf`, given by file name and text, and models, given by model name and text.
    ///
    /// # Errors
    ///
    /// All errors in all files, in the order of the files; never empty.
    pub fn parse(vipu_conf: (&str, &str), models: &[(&str, &str)]) -> Result<Self, ErrorList<ConfError>> {
        let mut errors = Vec::new();
        let cluster = ClusterConf::read(vipu_conf.0, vipu_conf.1, &mut errors);
        let mut parsed = BTreeMap::new();
        if let Some(model) = cluster.default_model() {
            parsed.insert(DEFAULT_MODEL.to_owned(), model.clone());
        }
        let mut names = BTreeSet::from([DEFAULT_MODEL]);
        for (name, text) in models {
            let file = format!("{name}.conf");
            if let Err((rule, fix)) = check_name(name, &mut names) {
                errors.push(at_beginning(
                    &file,
                    Violation::new("model", Some(name), rule, fix),
                ));
                continue;
            }
            match ModelConf::parse(&file, text, &cluster) {
                Ok(model) => drop(parsed.insert((*name).to_owned(), model)),
                Err(mistakes) => errors.extend(mistakes),
            }
        }
        if errors.is_empty() {
            Ok(Self {
                cluster,
                models: parsed,
            })
        } else {
            Err(errors.into())
        }
    }

    /// Returns the settings of the cluster.
    #[must_use]
    pub const fn cluster(&self) -> &ClusterConf {
        &self.cluster
    }

    /// Returns the settings of a model. `vipu.conf` describes the model `vipu`.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&ModelConf> {
        self.models.get(name)
    }

    /// Returns whether a model has a file of its own.
    pub(crate) fn is_own_file(&self, name: &str) -> bool {
        name != DEFAULT_MODEL && self.models.contains_key(name)
    }

    /// Returns all models by name.
    pub fn models(&self) -> impl Iterator<Item = (&str, &ModelConf)> {
        self.models.iter().map(|(name, model)| (name.as_str(), model))
    }
}

/// Checks the name of a model and adds it to `names`; otherwise returns the rule and the fix.
fn check_name<'a>(name: &'a str, names: &mut BTreeSet<&'a str>) -> Result<(), (&'static str, &'static str)> {
    if !is_name(name) {
        return Err((
            "a model has a name of letters, digits, '-', '_' and '.'",
            "rename the file, for example to pod64.conf",
        ));
    }
    if name == DEFAULT_MODEL {
        return Err(("vipu is the model of vipu.conf", "rename the file"));
    }
    if !names.insert(name) {
        return Err(("the model is given twice", "remove one of the files"));
    }
    Ok(())
}
