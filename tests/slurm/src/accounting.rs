//! Accounting of a bed: slurmdbd with a database of its own.

use std::process::Command;

use crate::error::BedError;
use crate::options::BED;
use crate::sandbox::Sandbox;

/// Lines of `slurm.conf`. `AccountingStoragePass` is the socket of munge.
pub(crate) const SETTINGS: &str = "\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePass=/run/munge/munge.socket.2
AccountingStorageEnforce=associations,limits,qos
";

/// Path of the database's socket, where libmariadb looks for that of `localhost`.
const SOCKET: &str = "/run/mysqld/mysqld.sock";

/// Creates an empty database, which belongs to the user of slurmdbd. Names of temporary tables contain the
/// process id, which is the same in several beds, so each has a directory for them.
const CREATE_DATABASE: &str = r#"
set -e
install -d -o slurm "$1" "$1.tmp" /run/mysqld
mariadb-install-db --no-defaults --user=slurm --datadir="$1" --tmpdir="$1.tmp" --skip-test-db >/dev/null
"#;

/// Returns the text of `slurmdbd.conf`. The database asks for no password, and has no port.
pub(crate) fn render() -> String {
    format!(
        "AuthType=auth/munge\nDbdHost=localhost\nDbdAddr=127.0.0.1\nSlurmUser=slurm\n\
         LogFile={BED}/log/slurmdbd.log\nPidFile={BED}/state/slurmdbd.pid\n\
         StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=slurm\n\
         StorageLoc=slurm_acct_db\n"
    )
}

/// Returns the command line of the database.
pub(crate) fn database() -> Vec<String> {
    let options = [
        format!("--datadir={BED}/database"),
        format!("--tmpdir={BED}/database.tmp"),
        format!("--socket={SOCKET}"),
        "--innodb-flush-log-at-trx-commit=0".into(),
        "--innodb-buffer-pool-size=64M".into(),
    ];
    let program = ["mariadbd", "--no-defaults", "--user=slurm", "--skip-networking"];
    let program = program.into_iter().map(str::to_owned);
    program
        .chain(["--skip-grant-tables".to_owned()])
        .chain(options)
        .collect()
}

/// Returns the command line of slurmdbd, which must run as SlurmUser.
pub(crate) fn slurmdbd() -> Vec<String> {
    let words = [
        "setpriv",
        "--reuid=slurm",
        "--regid=slurm",
        "--clear-groups",
        "slurmdbd",
        "-D",
    ];
    words.map(str::to_owned).to_vec()
}

/// Creates the database in a bed.
pub(crate) fn create_database(sandbox: &Sandbox) -> Result<(), BedError> {
    let mut command: Command = sandbox.command(None, "sh");
    command.args(["-c", CREATE_DATABASE, "sh", &format!("{BED}/database")]);
    let step = "create the database of a bed";
    let output = command.output().map_err(|error| BedError::step(step, error))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(BedError::step(step, String::from_utf8_lossy(&output.stderr)))
    }
}
