//! Container images made of local files: no registry and no other program is needed.

mod oci;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::error::ClusterError;
use crate::tar::TarArchive;

pub use oci::oci_archive;

/// Paths of the program in Debian's `busybox-static`, in newer and in older releases.
const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

/// An image with one layer.
///
/// ```no_run
/// use ipu_test_cluster::Image;
///
/// let image = Image::busybox("local/hello:1")?
///     .text("/etc/greeting", "hello\n")
///     .entrypoint(["cat", "/etc/greeting"]);
/// image.write("/tmp/hello.tar".as_ref())?;
/// # Ok::<(), ipu_test_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    /// Entries by path without the leading '/': a folder precedes its content.
    entries: BTreeMap<String, Entry>,
    entrypoint: Vec<String>,
    environment: Vec<String>,
    user: Option<String>,
}

#[derive(Clone, Debug)]
enum Entry {
    Folder(u32),
    /// A file of this machine.
    File(PathBuf),
    Text(String),
    Link(String),
}

impl Image {
    /// Creates an image with the usual empty folders. `name` has a tag other than `latest`, such as
    /// `local/mine:1`, so that no node tries to pull it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut image = Self::scratch(name).variable("PATH", "/usr/local/bin:/bin:/usr/bin:/sbin:/usr/sbin");
        for folder in [
            "bin", "dev", "etc", "proc", "root", "sys", "usr", "usr/bin", "var",
        ] {
            image.entries.insert(folder.into(), Entry::Folder(0o755));
        }
        image.entries.insert("tmp".into(), Entry::Folder(0o1777));
        image
    }

    /// Creates an image without files, for static programs. `name` is as for [`Self::new`].
    #[must_use]
    pub fn scratch(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            entries: BTreeMap::new(),
            entrypoint: Vec::new(),
            environment: Vec::new(),
            user: None,
        }
    }

    /// Creates an image with a shell and the usual small programs in `/bin`, by `busybox` of this machine.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if busybox is not installed.
    pub fn busybox(name: &str) -> Result<Self, ClusterError> {
        let program =
            busybox().ok_or_else(|| ClusterError::step("create an image", "busybox is not installed"))?;
        let list = Command::new(&program)
            .arg("--list")
            .output()
            .map_err(|error| ClusterError::step("list the applets of busybox", error))?;
        let mut image = Self::new(name).program(&program, "/bin/busybox")?;
        for applet in String::from_utf8_lossy(&list.stdout).lines() {
            if applet != "busybox" {
                image = image.link(&format!("/bin/{applet}"), "busybox");
            }
        }
        Ok(image)
    }

    /// Adds the local file `host` at `inside`, with its permissions.
    #[must_use]
    pub fn file(self, host: &Path, inside: &str) -> Self {
        self.with_entry(inside, Entry::File(host.to_owned()))
    }

    /// Adds a world-readable file with this text.
    #[must_use]
    pub fn text(self, inside: &str, text: &str) -> Self {
        self.with_entry(inside, Entry::Text(text.to_owned()))
    }

    /// Adds a symbolic link to `target`.
    #[must_use]
    pub fn link(self, inside: &str, target: &str) -> Self {
        self.with_entry(inside, Entry::Link(target.to_owned()))
    }

    /// Adds the program `host` at `inside`, and its shared libraries at their local paths.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if a library is missing.
    pub fn program(self, host: &Path, inside: &str) -> Result<Self, ClusterError> {
        self.file(host, inside).libraries_of(host)
    }

    /// Adds the content of the local folder `host` at the same path, with the shared libraries of its
    /// programs and libraries.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if the folder cannot be read or a library is missing.
    pub fn folder(mut self, host: &Path) -> Result<Self, ClusterError> {
        let write_error =
            |error: std::io::Error| ClusterError::step(format!("read {}", host.display()), error);
        for entry in fs::read_dir(host).map_err(write_error)? {
            let path = entry.map_err(write_error)?.path();
            let inside = path.display().to_string();
            let kind = fs::symlink_metadata(&path).map_err(write_error)?.file_type();
            if kind.is_dir() {
                self = self.folder(&path)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(write_error)?;
                self = self.link(&inside, &target.display().to_string());
            } else if path.extension().is_some_and(|extension| extension == "so") {
                self = self.program(&path, &inside)?;
            } else {
                self = self.file(&path, &inside);
            }
        }
        Ok(self)
    }

    /// Sets the default command of the image.
    #[must_use]
    pub fn entrypoint<const N: usize>(mut self, command: [&str; N]) -> Self {
        self.entrypoint = command.map(String::from).to_vec();
        self
    }

    /// Sets the user, as numbers such as `65532:65532`.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Renames the image.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Returns the name with the tag.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes an archive that containerd and Docker can load.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if a file cannot be read or written.
    pub fn write(&self, archive: &Path) -> Result<(), ClusterError> {
        let bytes = oci_archive(std::slice::from_ref(self))?;
        fs::write(archive, bytes)
            .map_err(|error| ClusterError::step(format!("write the image {}", self.name), error))
    }

    /// Returns the configuration of an image whose only layer has this digest.
    pub(crate) fn config(&self, layer: &str) -> Value {
        let mut config = json!({"Entrypoint": self.entrypoint, "Env": self.environment, "WorkingDir": "/"});
        if let Some(user) = &self.user {
            config["User"] = user.as_str().into();
        }
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
            "history": [{"created_by": "cargo xtask package"}],
        })
    }

    /// Returns the layer, a tar archive.
    pub(crate) fn layer(&self) -> Result<Vec<u8>, ClusterError> {
        let mut archive = TarArchive::default();
        for (path, entry) in &self.entries {
            let write_error =
                |error: std::io::Error| ClusterError::step(format!("put {path} into an image"), error);
            match entry {
                Entry::Folder(mode) => archive.folder(path, *mode),
                Entry::Text(text) => archive.file(path, 0o644, text.as_bytes()),
                Entry::Link(target) => archive.link(path, target),
                Entry::File(host) => {
                    // The mode on the host depends on the umask of the build.
                    let bytes = fs::read(host).map_err(write_error)?;
                    archive.file(path, 0o755, &bytes)
                }
            }
            .map_err(write_error)?;
        }
        let finished = archive.finish();
        finished.map_err(|error| ClusterError::step("write an image", error))
    }

    fn with_entry(mut self, inside: &str, entry: Entry) -> Self {
        let path = inside.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries
                .entry(path[..at].to_owned())
                .or_insert(Entry::Folder(0o755));
        }
        self.entries.insert(path.to_owned(), entry);
        self
    }

    /// Adds the shared libraries of the local program or library `program`, at their local paths.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if one is missing.
    pub fn libraries_of(mut self, program: &Path) -> Result<Self, ClusterError> {
        let write_error = |detail: String| {
            ClusterError::step(format!("find the libraries of {}", program.display()), detail)
        };
        let output = Command::new("ldd")
            .arg(program)
            .env("LC_ALL", "C")
            .output()
            .map_err(|error| write_error(error.to_string()))?;
        // `ldd` fails for static programs, which need no libraries.
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if line.ends_with("=> not found") {
                return Err(write_error(line.trim().to_owned()));
            }
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self = self.file(Path::new(library), library);
            }
        }
        Ok(self)
    }
}

/// Returns the path of busybox, if installed.
pub(crate) fn busybox() -> Option<PathBuf> {
    BUSYBOX.into_iter().map(PathBuf::from).find(|path| path.exists())
}

/// Returns this machine's architecture in image terms.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
