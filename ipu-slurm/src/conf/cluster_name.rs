//! The name of the cluster in `slurm.conf`.

/// The setting of a line of `slurm.conf` that names the cluster, or that may lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterNameSetting {
    /// `ClusterName`, in lower case as Slurm uses it.
    Name(String),
    /// The path of an included file.
    Include(String),
}

/// Returns the settings of a file in its order, for the programs that Slurm starts without
/// `SLURM_CLUSTER_NAME`.
#[must_use]
pub fn cluster_name_settings(text: &str) -> Vec<ClusterNameSetting> {
    text.lines().filter_map(setting).collect()
}

fn setting(line: &str) -> Option<ClusterNameSetting> {
    let line = line.split('#').next().unwrap_or_default().trim();
    if let Some((word, path)) = line.split_once(char::is_whitespace)
        && word.eq_ignore_ascii_case("include")
    {
        return Some(ClusterNameSetting::Include(path.trim().to_owned()));
    }
    let (key, rest) = line.split_once('=')?;
    let value = rest.split_whitespace().next()?.trim_matches('"');
    let is_name = key.trim().eq_ignore_ascii_case("ClusterName") && !value.is_empty();
    is_name.then(|| ClusterNameSetting::Name(value.to_lowercase()))
}
