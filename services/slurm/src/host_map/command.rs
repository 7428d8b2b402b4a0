//! AllocationCreate and AllocationRemove: programs of the site, which no shell starts.

use std::time::Duration;

use crate::process;

/// Maximum length of the output of a command in a message, in characters.
const MAX_OUTPUT: usize = 200;

/// The reason that a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The command was not started, or it failed. It changes nothing any more.
    #[error("{0}")]
    Failed(String),
    /// The command was killed, and may have changed something.
    #[error("{0}")]
    Unfinished(String),
}

/// Runs a command, which is killed if it takes too long.
pub(super) async fn run(argv: &[String], timeout: Duration) -> Result<(), CommandError> {
    let [program, arguments @ ..] = argv else {
        return Err(CommandError::Failed("the command is empty".into()));
    };
    let output = process::command(program).args(arguments).output();
    let output = match tokio::time::timeout(timeout, output).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(CommandError::Failed(format!("cannot run {program}: {error}"))),
        Err(_) => {
            let seconds = timeout.as_secs();
            return Err(CommandError::Unfinished(format!(
                "{program} did not end within {seconds} s (ApiTimeout)"
            )));
        }
    };
    if output.status.success() {
        return Ok(());
    }
    let mut message = String::from_utf8_lossy(&output.stderr).into_owned();
    if message.trim().is_empty() {
        message = String::from_utf8_lossy(&output.stdout).into_owned();
    }
    let message: String = message.trim().chars().take(MAX_OUTPUT).collect();
    let problem = format!("{program} failed ({}): {message}", output.status);
    Err(match output.status.code() {
        Some(_) => CommandError::Failed(problem),
        // A signal ended it.
        None => CommandError::Unfinished(problem),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn problem(argv: &[&str]) -> String {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        run(&argv, Duration::from_secs(1)).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn a_command_that_fails_is_reported_with_its_output() {
        assert_eq!(
            problem(&["/bin/sh", "-c", "echo no agent a1 >&2; exit 3"]).await,
            "/bin/sh failed (exit status: 3): no agent a1"
        );
        assert!(problem(&["/nowhere"]).await.starts_with("cannot run /nowhere: "));
        assert_eq!(
            problem(&["/bin/sh", "-c", "exec tail -f /dev/null"]).await,
            "/bin/sh did not end within 1 s (ApiTimeout)"
        );
        assert_eq!(problem(&[]).await, "the command is empty");
    }
}
