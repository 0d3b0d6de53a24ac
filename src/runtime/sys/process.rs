//! What concerns the whole process or thread: limits, pages, time on a core, descriptors from the service manager.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::clock;

/// Raises the limit of open descriptors as far as the system lets us, and returns it; `None` if it does not tell.
pub(in crate::runtime) fn raise_descriptor_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is ours and outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return None;
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above; the kernel only reads it.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        limit.rlim_cur = before;
    }
    usize::try_from(limit.rlim_cur).ok()
}

/// Sockets that the service manager has opened for this process (`LISTEN_FDS`). To be called once, before anything else
/// opens descriptors.
pub(in crate::runtime) fn activated() -> Vec<OwnedFd> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Vec::new();
    }
    let Ok(fds) = sd_notify::listen_fds() else { return Vec::new() };
    // SAFETY: the service manager says that these descriptors are open and this process's own (LISTEN_PID), nothing else
    // knows of them, and they are taken only once.
    fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Has the calling thread's sleeps end when they should, not up to 50 µs later. Best effort.
pub(in crate::runtime) fn sleep_precisely() {
    // SAFETY: it takes a number of nanoseconds and no pointer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

/// Keeps the process to pages of the usual size. Huge ones save faults, but the kernel fills the gaps of what was given
/// back: an idle node grew again by tens of megabytes. Best effort.
pub fn no_huge_pages() {
    let (on, unused) = (1 as libc::c_ulong, 0 as libc::c_ulong);
    // SAFETY: it takes numbers and no pointer.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, on, unused, unused, unused) };
}

/// Time that the calling thread has spent on a core.
pub(in crate::runtime) fn thread_time() -> Duration {
    let time = clock(libc::CLOCK_THREAD_CPUTIME_ID).and_then(|time| u64::try_from(time).ok());
    Duration::from_nanos(time.unwrap_or(0))
}
