//! What a connection reads from and writes to: a socket, bare or under TLS.

use std::io;
use std::os::fd::AsFd;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::sys;
use super::tls::Failure;
use super::tls::words::{Cause, explain};

/// A stream socket, bare or under TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + 'static {
    /// What a failure to read means, where that says something about the handshake: with TLS 1.3 the other end
    /// may refuse our certificate after we think that it is done.
    fn refusal(&self, _error: &io::Error) -> Option<Failure> {
        None
    }

    /// Octets that the other end's system has not acknowledged, and whether the connection has failed.
    fn fate(&self) -> (usize, bool);

    /// Makes closing it throw away what is still to be sent: a reader that is too slow would
    /// otherwise keep the kernel's buffers for many minutes.
    fn abort(&self);

    /// Octets received and not read yet, where that can be told.
    fn queued(&self) -> usize {
        0
    }
}

impl Stream for TcpStream {
    fn abort(&self) {
        let _ = self.set_zero_linger();
    }

    fn queued(&self) -> usize {
        sys::queued(self.as_fd())
    }

    fn fate(&self) -> (usize, bool) {
        let failed = self.take_error().map_or(true, |e| e.is_some());
        (sys::unacknowledged(self.as_fd()), failed)
    }
}

impl Stream for TlsStream<TcpStream> {
    fn refusal(&self, error: &io::Error) -> Option<Failure> {
        let (cause, words) = explain(error);
        (cause == Cause::Alert).then_some(Failure { cause, words })
    }

    fn abort(&self) {
        self.get_ref().0.abort();
    }

    fn queued(&self) -> usize {
        self.get_ref().0.queued()
    }

    fn fate(&self) -> (usize, bool) {
        self.get_ref().0.fate()
    }
}
