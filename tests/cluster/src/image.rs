//! Images of containers, made of files of this machine: no registry and no other program is needed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::digest::sha256;
use crate::error::ClusterError;
use crate::tar::{self, Content};

/// Where Debian's `busybox-static` puts its program, in newer and in older releases.
const BUSYBOX: [&str; 2] = ["/usr/bin/busybox", "/bin/busybox"];

/// An image with one layer.
///
/// ```no_run
/// use ipu_test_cluster::Image;
///
/// let image = Image::busybox("local/hello:1")?.text("/etc/greeting", "hello\n").entrypoint(["cat", "/etc/greeting"]);
/// image.write("/tmp/hello.tar".as_ref())?;
/// # Ok::<(), ipu_test_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Image {
    name: String,
    /// By path, without the leading '/': a folder comes before what is in it.
    entries: BTreeMap<String, Entry>,
    entrypoint: Vec<String>,
    environment: Vec<String>,
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
    /// One that holds the usual empty folders and nothing else. `name` has a tag other than `latest`, such as
    /// `local/mine:1`, so that nobody tries to pull it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut image = Self {
            name: name.to_owned(),
            entries: BTreeMap::new(),
            entrypoint: Vec::new(),
            environment: vec!["PATH=/usr/local/bin:/bin:/usr/bin:/sbin:/usr/sbin".into()],
        };
        for folder in [
            "bin", "dev", "etc", "proc", "root", "sys", "usr", "usr/bin", "var",
        ] {
            image.entries.insert(folder.into(), Entry::Folder(0o755));
        }
        image.entries.insert("tmp".into(), Entry::Folder(0o1777));
        image
    }

    /// One with a shell and the usual small programs in `/bin`, by `busybox` of this machine.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if there is none.
    pub fn busybox(name: &str) -> Result<Self, ClusterError> {
        let program =
            busybox().ok_or_else(|| ClusterError::step("make an image", "busybox is not installed"))?;
        let list = Command::new(&program)
            .arg("--list")
            .output()
            .map_err(|error| ClusterError::step("ask busybox what it is", error))?;
        let mut image = Self::new(name).program(&program, "/bin/busybox")?;
        for applet in String::from_utf8_lossy(&list.stdout).lines() {
            if applet != "busybox" {
                image = image.link(&format!("/bin/{applet}"), "busybox");
            }
        }
        Ok(image)
    }

    /// With the file `host` of this machine at `inside`; its permissions stay.
    #[must_use]
    pub fn file(self, host: &Path, inside: &str) -> Self {
        self.with(inside, Entry::File(host.to_owned()))
    }

    /// With a file of this text, which everybody may read.
    #[must_use]
    pub fn text(self, inside: &str, text: &str) -> Self {
        self.with(inside, Entry::Text(text.to_owned()))
    }

    /// With a symbolic link to `target`.
    #[must_use]
    pub fn link(self, inside: &str, target: &str) -> Self {
        self.with(inside, Entry::Link(target.to_owned()))
    }

    /// With the program `host` at `inside`, and the libraries that it is linked with where they are here.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if a library is missing.
    pub fn program(self, host: &Path, inside: &str) -> Result<Self, ClusterError> {
        self.file(host, inside).libraries_of(host)
    }

    /// With everything in the folder `host` of this machine at the same place, and the libraries that its programs and
    /// libraries are linked with.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if the folder cannot be read or a library is missing.
    pub fn folder(mut self, host: &Path) -> Result<Self, ClusterError> {
        let failed = |error: std::io::Error| ClusterError::step(format!("read {}", host.display()), error);
        for entry in fs::read_dir(host).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let inside = path.display().to_string();
            let kind = fs::symlink_metadata(&path).map_err(failed)?.file_type();
            if kind.is_dir() {
                self = self.folder(&path)?;
            } else if kind.is_symlink() {
                let target = fs::read_link(&path).map_err(failed)?;
                self = self.link(&inside, &target.display().to_string());
            } else if path.extension().is_some_and(|extension| extension == "so") {
                self = self.program(&path, &inside)?;
            } else {
                self = self.file(&path, &inside);
            }
        }
        Ok(self)
    }

    /// That runs this unless the container says otherwise.
    #[must_use]
    pub fn entrypoint<const N: usize>(mut self, words: [&str; N]) -> Self {
        self.entrypoint = words.map(String::from).to_vec();
        self
    }

    /// With this variable in its environment.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// The same under another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The name, with the tag.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes the archive that containerd and Docker load.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if a file cannot be read or written.
    pub fn write(&self, archive: &Path) -> Result<(), ClusterError> {
        let failed =
            |error: std::io::Error| ClusterError::step(format!("write the image {}", self.name), error);
        let layer = self.layer()?;
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": self.environment},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))]},
            "history": [{"created_by": "ipu-test-cluster"}],
        })
        .to_string();
        let config_name = format!("{}.json", sha256(config.as_bytes()));
        let manifest =
            json!([{"Config": config_name, "RepoTags": [self.name], "Layers": ["layer.tar"]}]).to_string();
        let mut out = Vec::with_capacity(layer.len() + 8192);
        for (name, bytes) in [
            (config_name.as_str(), config.as_bytes()),
            ("layer.tar", &layer),
            ("manifest.json", manifest.as_bytes()),
        ] {
            tar::append(&mut out, name, 0o644, &Content::File(bytes)).map_err(failed)?;
        }
        tar::finish(&mut out).map_err(failed)?;
        fs::write(archive, out).map_err(failed)
    }

    fn layer(&self) -> Result<Vec<u8>, ClusterError> {
        let mut out = Vec::new();
        for (path, entry) in &self.entries {
            let failed =
                |error: std::io::Error| ClusterError::step(format!("put {path} into an image"), error);
            match entry {
                Entry::Folder(mode) => tar::append(&mut out, path, *mode, &Content::Folder),
                Entry::Text(text) => tar::append(&mut out, path, 0o644, &Content::File(text.as_bytes())),
                Entry::Link(target) => tar::append(&mut out, path, 0o777, &Content::Link(target)),
                Entry::File(host) => {
                    let mode = fs::metadata(host).map_err(failed)?.permissions().mode();
                    let bytes = fs::read(host).map_err(failed)?;
                    tar::append(&mut out, path, mode & 0o7777, &Content::File(&bytes))
                }
            }
            .map_err(failed)?;
        }
        tar::finish(&mut out).map_err(|error| ClusterError::step("end an image", error))?;
        Ok(out)
    }

    fn with(mut self, inside: &str, entry: Entry) -> Self {
        let path = inside.trim_start_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries
                .entry(path[..at].to_owned())
                .or_insert(Entry::Folder(0o755));
        }
        self.entries.insert(path.to_owned(), entry);
        self
    }

    /// With the libraries that the program or library `program` of this machine is linked with, at the places that they have here.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Step`] if one is missing.
    pub fn libraries_of(mut self, program: &Path) -> Result<Self, ClusterError> {
        let failed = |detail: String| {
            ClusterError::step(format!("find the libraries of {}", program.display()), detail)
        };
        let output = Command::new("ldd")
            .arg(program)
            .env("LC_ALL", "C")
            .output()
            .map_err(|error| failed(error.to_string()))?;
        // It fails for what is linked statically, which needs none.
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if line.ends_with("=> not found") {
                return Err(failed(line.trim().to_owned()));
            }
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self = self.file(Path::new(library), library);
            }
        }
        Ok(self)
    }
}

/// The program of busybox, if it is installed.
pub(crate) fn busybox() -> Option<PathBuf> {
    BUSYBOX.into_iter().map(PathBuf::from).find(|path| path.exists())
}

/// This machine's, as images call it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
