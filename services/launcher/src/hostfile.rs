//! Reads the hostfile of `mpirun`: the workers of a job.

use std::path::Path;

use crate::exit::Failure;

/// Reads the workers of a hostfile in their order, each once.
pub(crate) fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let failed = |detail: String| Failure::Hostfile {
        path: path.display().to_string(),
        detail,
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let workers = parse(&text);
    if workers.is_empty() {
        return Err(failed("the file names no worker".into()));
    }
    Ok(workers)
}

/// Parses lines of the form `NAME [slots=1 …] [# comment]`; only the name is used.
fn parse(text: &str) -> Vec<String> {
    let mut workers: Vec<String> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        if let Some(name) = line.split_whitespace().next()
            && !workers.iter().any(|worker| worker == name)
        {
            workers.push(name.to_owned());
        }
    }
    workers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostfile_names_each_worker_once() {
        let text =
            "# made by the operator\n\njob-worker-0 slots=1\n  job-worker-1 slots=2 # two\njob-worker-0\n";
        assert_eq!(parse(text), ["job-worker-0", "job-worker-1"]);
    }
}
