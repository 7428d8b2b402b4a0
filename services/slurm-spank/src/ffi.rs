//! The C interface of SPANK: the symbols that Slurm looks up, and the functions of Slurm that they call.
//!
//! This is the only module with `unsafe` code. The declarations follow `slurm/spank.h`. Slurm's functions are
//! resolved when Slurm loads the library, so that a build needs neither headers nor libraries. No panic
//! crosses the interface.
#![expect(unsafe_code, reason = "Slurm's plugin interface is C")]

use std::env;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::panic::catch_unwind;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::environment;
use crate::job_option::{JobOption, text};
use crate::option_error::OptionError;
use crate::request::IpuRequest;
use crate::slurm_version;

/// Slurm's handle of a plugin.
type SpankHandle = *mut c_void;

const SUCCESS: c_int = 0;
/// Slurm of some versions takes only negative values for failures.
const FAILURE: c_int = -1;

/// Values of `spank_context_t`.
const CONTEXT_LOCAL: c_int = 1;
const CONTEXT_REMOTE: c_int = 2;
const CONTEXT_ALLOCATOR: c_int = 3;

/// Values of `has_arg`.
const NO_ARGUMENT: c_int = 0;
const REQUIRED_ARGUMENT: c_int = 1;

/// `struct spank_option`.
#[repr(C)]
struct SpankOption {
    name: *const c_char,
    arginfo: *const c_char,
    usage: *const c_char,
    has_arg: c_int,
    val: c_int,
    cb: Option<extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn spank_context() -> c_int;
    fn spank_option_register(spank: SpankHandle, option: *mut SpankOption) -> c_int;
    fn spank_setenv(spank: SpankHandle, name: *const c_char, value: *const c_char, overwrite: c_int)
    -> c_int;
    fn spank_job_control_setenv(
        spank: SpankHandle,
        name: *const c_char,
        value: *const c_char,
        overwrite: c_int,
    ) -> c_int;
    fn spank_job_control_unsetenv(spank: SpankHandle, name: *const c_char) -> c_int;
    fn slurm_error(format: *const c_char, ...);
}

/// A text with its terminating zero, as an exported array.
#[repr(C)]
struct ExportedText<const N: usize>([u8; N]);

#[unsafe(export_name = "plugin_name")]
static PLUGIN_NAME: ExportedText<5> = ExportedText(*b"vipu\0");
#[unsafe(export_name = "plugin_type")]
static PLUGIN_TYPE: ExportedText<6> = ExportedText(*b"spank\0");
#[unsafe(export_name = "plugin_version")]
static PLUGIN_VERSION: AtomicU32 = AtomicU32::new(slurm_version::BUILT_IN);
#[unsafe(export_name = "spank_plugin_version")]
static SPANK_PLUGIN_VERSION: c_uint = 1;

/// Runs when the library is loaded, before Slurm reads `plugin_version`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = name_version_of_loader;

/// The options of this command.
static REQUEST: Mutex<IpuRequest> = Mutex::new(IpuRequest::new());

/// The options of the first component of a heterogeneous job, or of the only one. Slurm calls
/// `slurm_spank_init_post_opt` for each component in turn.
static FIRST_COMPONENT: OnceLock<IpuRequest> = OnceLock::new();

extern "C" fn name_version_of_loader() {
    // SAFETY: a null handle is RTLD_DEFAULT of glibc, and the name ends with a zero.
    let found = unsafe { dlsym(ptr::null_mut(), c"slurm_api_version".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: slurm.h declares `long slurm_api_version(void)`.
    let slurm_api_version =
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_long>(found) };
    // SAFETY: it takes no argument and reads a constant.
    let api = unsafe { slurm_api_version() };
    if let Some(version) = u64::try_from(api).ok().and_then(slurm_version::of_api) {
        PLUGIN_VERSION.store(version, Ordering::Relaxed);
    }
}

/// Registers the options, in the commands and in slurmstepd.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init(spank: SpankHandle, _ac: c_int, _av: *mut *mut c_char) -> c_int {
    contain_panic(|| {
        if !matches!(context(), CONTEXT_LOCAL | CONTEXT_REMOTE | CONTEXT_ALLOCATOR) {
            return SUCCESS;
        }
        if belongs_to_new_job() {
            remove_variables_of_enclosing_job();
        }
        for (index, option) in (0..).zip(JobOption::ALL) {
            let mut registration = SpankOption {
                name: option.name().as_ptr(),
                arginfo: option.placeholder().map_or(ptr::null(), CStr::as_ptr),
                usage: option.usage().as_ptr(),
                has_arg: option.placeholder().map_or(NO_ARGUMENT, |_| REQUIRED_ARGUMENT),
                val: index,
                cb: Some(on_option),
            };
            // SAFETY: Slurm gave the handle for this call, and copies the structure with its texts.
            if unsafe { spank_option_register(spank, &raw mut registration) } != SUCCESS {
                return FAILURE;
            }
        }
        SUCCESS
    })
}

/// Takes the value of an option. A failure ends the command before it submits anything, even if the plugin
/// is `optional` in `plugstack.conf`.
extern "C" fn on_option(index: c_int, argument: *const c_char, remote: c_int) -> c_int {
    contain_panic(|| {
        let option = usize::try_from(index)
            .ok()
            .and_then(|index| JobOption::ALL.get(index));
        let Some(option) = option else { return FAILURE };
        let value = if argument.is_null() {
            String::new()
        } else {
            // SAFETY: Slurm passes a text that ends with a zero and outlives this call.
            let argument = unsafe { CStr::from_ptr(argument) };
            argument.to_string_lossy().into_owned()
        };
        let mut request = REQUEST.lock().unwrap_or_else(PoisonError::into_inner);
        match request.set(*option, &value) {
            Ok(()) => SUCCESS,
            Err(error) => {
                // The command has shown it already.
                if remote == 0 {
                    print_error(&error);
                }
                FAILURE
            }
        }
    })
}

/// Checks the request as a whole, and hands it to the hooks and the tasks.
#[unsafe(no_mangle)]
extern "C" fn slurm_spank_init_post_opt(spank: SpankHandle, _ac: c_int, _av: *mut *mut c_char) -> c_int {
    contain_panic(|| {
        let request = REQUEST.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match context() {
            CONTEXT_REMOTE => set_task_variables(spank, &request),
            CONTEXT_LOCAL | CONTEXT_ALLOCATOR => {
                if !belongs_to_new_job() {
                    exit_on_error(request.check_step(job_value));
                } else if let Some(first) = FIRST_COMPONENT.get() {
                    exit_on_error(request.check_later_component(first));
                    return unset_job_variables(spank);
                } else {
                    exit_on_error(request.check());
                    // It is not set.
                    let _ = FIRST_COMPONENT.set(request.clone());
                }
                set_job_variables(spank, &request)
            }
            _ => SUCCESS,
        }
    })
}

/// Sets the variables of the tasks and of TaskProlog, in slurmstepd.
fn set_task_variables(spank: SpankHandle, request: &IpuRequest) -> c_int {
    for (option, value) in values(request) {
        let (Some(value), name) = (value, option.variable().as_ptr()) else {
            continue;
        };
        // SAFETY: Slurm gave the handle for this call, and copies both texts.
        if unsafe { spank_setenv(spank, name, value.as_ptr(), 1) } != SUCCESS {
            return FAILURE;
        }
    }
    SUCCESS
}

/// Sets the variables of the job's hooks, and those that the command hands to the job. A step sets them for
/// the Prolog of a node, which runs before the first step there with the variables of that step.
fn set_job_variables(spank: SpankHandle, request: &IpuRequest) -> c_int {
    for (option, value) in values(request) {
        let Some(value) = value else { continue };
        let name = OsStr::from_bytes(option.variable().to_bytes());
        // SAFETY: Slurm calls this before the command starts threads.
        unsafe { env::set_var(name, OsStr::from_bytes(value.to_bytes())) };
        let name = option.variable().as_ptr();
        // SAFETY: Slurm gave the handle for this call, and copies both texts.
        if unsafe { spank_job_control_setenv(spank, name, value.as_ptr(), 1) } != SUCCESS {
            return FAILURE;
        }
    }
    SUCCESS
}

/// Removes the variables of the first component's hooks from a later one, which has no IPUs.
fn unset_job_variables(spank: SpankHandle) -> c_int {
    for option in JobOption::ALL {
        let name = option.variable().as_ptr();
        // SAFETY: Slurm gave the handle for this call. A variable that is not set is not a failure.
        unsafe { spank_job_control_unsetenv(spank, name) };
    }
    SUCCESS
}

/// Returns whether this command submits a job, and does not start a step in one.
fn belongs_to_new_job() -> bool {
    let is_in_job = ["SLURM_JOB_ID", "SLURM_JOBID"]
        .iter()
        .any(|name| env::var_os(name).is_some());
    match context() {
        CONTEXT_ALLOCATOR => true,
        CONTEXT_LOCAL => !is_in_job,
        _ => false,
    }
}

/// Removes the variables by which a command in a job would hand the options of that job to a new one.
fn remove_variables_of_enclosing_job() {
    for name in env::vars_os().map(|(name, _)| name) {
        if environment::is_of_job(name.as_bytes()) {
            // SAFETY: Slurm calls this before the command starts threads.
            unsafe { env::remove_var(&name) };
        }
    }
}

fn values(request: &IpuRequest) -> impl Iterator<Item = (JobOption, Option<CString>)> + '_ {
    JobOption::ALL.into_iter().map(|option| {
        // A checked value has no zero.
        let value = request.value(option).and_then(|value| CString::new(value).ok());
        (option, value)
    })
}

/// Returns the value of an option of the job that this step belongs to.
fn job_value(option: JobOption) -> Option<String> {
    env::var(text(option.variable())).ok()
}

/// Ends the command. Slurm ignores failures at this point if the plugin is `optional`, and would submit.
fn exit_on_error(checked: Result<(), OptionError>) {
    if let Err(error) = checked {
        print_error(&error);
        process::exit(1);
    }
}

fn print_error(error: &OptionError) {
    let line = CString::new(format!("vipu: {error}").replace('\0', "")).unwrap_or_default();
    // SAFETY: the format takes one text, which ends with a zero.
    unsafe { slurm_error(c"%s".as_ptr(), line.as_ptr()) };
}

fn context() -> c_int {
    // SAFETY: it takes no argument, and reads a variable that Slurm has set.
    unsafe { spank_context() }
}

fn contain_panic(callback: impl FnOnce() -> c_int + std::panic::UnwindSafe) -> c_int {
    catch_unwind(callback).unwrap_or(FAILURE)
}
