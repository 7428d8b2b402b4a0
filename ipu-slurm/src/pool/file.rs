//! The file of a partition.

use std::collections::BTreeMap;

use ipu_core::IpuCount;

/// The beginning of the first line, with the version of the format.
const HEADER: &str = "# ipu-slurm pool 1";
/// The beginning of every variable.
const VARIABLE_PREFIX: &str = "IPUOF_";

/// The file of a static partition. A file of Graphcore's scripts is empty: its size is unknown, and it has no
/// variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFile {
    /// The IPUs of the partition, as V-IPU reported them.
    pub size: Option<IpuCount>,
    /// The variables that select the partition.
    pub variables: BTreeMap<String, String>,
}

impl PoolFile {
    /// Returns the text of the file. Variables that do not begin with `IPUOF_`, or have control characters,
    /// are left out.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = match self.size {
            Some(size) => format!("{HEADER} size={size}\n"),
            None => format!("{HEADER}\n"),
        };
        for (name, value) in &self.variables {
            if is_variable(name, value) {
                text.push_str(&format!("{name}={value}\n"));
            }
        }
        text
    }

    /// Parses the text of a file. Lines of other programs are ignored.
    ///
    /// ```
    /// use ipu_slurm::PoolFile;
    ///
    /// let text = "# ipu-slurm pool 1 size=2\nIPUOF_VIPU_API_HOST=ipu-pod64-001\n";
    /// let file = PoolFile::parse(&format!("{text}PATH=/tmp\n"));
    /// assert_eq!(file.size.map(|ipus| ipus.get()), Some(2));
    /// assert_eq!(file.render(), text);
    /// ```
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let Some(words) = lines.next().and_then(|header| header.strip_prefix(HEADER)) else {
            return Self::default();
        };
        let size = words.split(' ').find_map(|word| word.strip_prefix("size="));
        let variables = lines.filter_map(|line| line.split_once('='));
        Self {
            size: size.and_then(|size| size.parse().ok()),
            variables: variables
                .filter(|(name, value)| is_variable(name, value))
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }
}

/// Returns whether Slurm can take a variable in one line.
fn is_variable(name: &str, value: &str) -> bool {
    name.starts_with(VARIABLE_PREFIX) && ![name, value].iter().any(|text| text.contains(char::is_control))
}
