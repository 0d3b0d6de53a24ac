//! Verification of a certificate: the chain by RFC 5280, then the name by RFC 5922 §7.3.
//!
//! The library's own verifiers match DNS names and addresses, wildcards included, and know nothing of
//! `sip:` URIs; so the chain is verified here with what they stand on, and the name by `identity`.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};
use rustls::{RootCertStore, pki_types};
use webpki::{
    CertRevocationList, EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter,
    RevocationOptionsBuilder, UnknownStatusPolicy,
};

use crate::flow::{TlsExpectation, TlsIdentity};

use super::identity::Presented;
use super::words::{Cause, date};

/// Whom we believe: authorities, and lists of what they have revoked.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) roots: RootCertStore,
    pub(super) crls: Vec<CertRevocationList<'static>>,
    pub(super) hints: Vec<DistinguishedName>,
    pub(super) provider: Arc<CryptoProvider>,
}

impl Trust {
    pub(super) fn new(
        roots: RootCertStore,
        crls: Vec<CertRevocationList<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Self {
        let hints = roots.roots.iter().map(|r| DistinguishedName::in_sequence(r.subject.as_ref())).collect();
        Self { roots, crls, hints, provider }
    }

    /// The chain alone: signatures, validity, constraints, purpose, revocation.
    pub(super) fn chain(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), webpki::Error> {
        let certificate = EndEntityCert::try_from(end)?;
        let lists: Vec<&CertRevocationList<'_>> = self.crls.iter().collect();
        // The operator gives lists for some authorities; what no list speaks of is not revoked.
        let revocation = RevocationOptionsBuilder::new(&lists)
            .ok()
            .map(|builder| builder.with_status_policy(UnknownStatusPolicy::Allow).build());
        let algorithms = self.provider.signature_verification_algorithms.all;
        certificate
            .verify_for_usage(algorithms, &self.roots.roots, between, now, Purpose, revocation, None)
            .map(drop)
    }
}

/// What a SIP domain's certificate may be for.
///
/// A proxy is client and server with one certificate, and RFC 5922 asks for no extended key usage; public
/// authorities leave out `clientAuth` by now. So one of either purpose serves both, as does that of RFC 5924.
struct Purpose;

impl Purpose {
    /// serverAuth, clientAuth, sipDomain, any: contents of the OIDs.
    const GOOD: [&'static [u8]; 4] = [
        &[0x2b, 6, 1, 5, 5, 7, 3, 1],
        &[0x2b, 6, 1, 5, 5, 7, 3, 2],
        &[0x2b, 6, 1, 5, 5, 7, 3, 20],
        &[0x55, 0x1d, 0x25, 0],
    ];
}

impl ExtendedKeyUsageValidator for Purpose {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut any = false;
        for purpose in purposes {
            let purpose = purpose?;
            any = true;
            if Self::GOOD.iter().any(|good| KeyPurposeId::new(good) == purpose) {
                return Ok(());
            }
        }
        // The validator also runs where there is no such extension.
        if any { Err(webpki::Error::UnsupportedCriticalExtension) } else { Ok(()) }
    }
}

/// What a handshake has shown about the other end.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// Its identity, once verified.
    pub(super) identity: Option<Arc<TlsIdentity>>,
    /// Why it was refused.
    pub(super) refused: Option<(Cause, String)>,
}

/// Verifies the other end of one connection.
#[derive(Debug)]
pub(super) struct Verifier {
    trust: Arc<Trust>,
    /// Outgoing: whom it must name. Incoming: whoever it names, the routing decides about.
    wanted: Option<TlsExpectation>,
    /// Incoming: no handshake without a certificate.
    mandatory: bool,
    shown: Mutex<Shown>,
}

impl Verifier {
    /// For a connection that we open.
    pub(super) fn of_server(trust: Arc<Trust>, wanted: TlsExpectation) -> Arc<Self> {
        Arc::new(Self { trust, wanted: Some(wanted), mandatory: true, shown: Mutex::default() })
    }

    /// For a connection that we accept.
    pub(super) fn of_client(trust: Arc<Trust>, mandatory: bool) -> Arc<Self> {
        Arc::new(Self { trust, wanted: None, mandatory, shown: Mutex::default() })
    }

    /// What came out of it; nothing is left behind.
    pub(super) fn take(&self) -> Shown {
        std::mem::take(&mut *self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn verify(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let outcome = self.judge(end, between, now);
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(identity) => {
                shown.identity = Some(identity);
                Ok(())
            }
            Err((cause, words, error)) => {
                shown.refused = Some((cause, words));
                Err(error.into())
            }
        }
    }

    fn judge(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Arc<TlsIdentity>, (Cause, String, CertificateError)> {
        let Some(presented) = Presented::read(end) else {
            let words = "its certificate cannot be read".to_owned();
            return Err((Cause::Unreadable, words, CertificateError::BadEncoding));
        };
        if let Err(error) = self.trust.chain(end, between, now) {
            return Err(why(error, &presented, now));
        }
        if let Some(wanted) = &self.wanted
            && !presented.is_one_of(&wanted.accepted)
        {
            let words = format!(
                "its certificate names {}, and must name {}",
                presented.words(),
                super::words::one_of(&wanted.accepted)
            );
            return Err((Cause::WrongName, words, CertificateError::NotValidForName));
        }
        Ok(Arc::new(presented.identity))
    }
}

/// A chain that does not hold, in words.
fn why(error: webpki::Error, presented: &Presented, now: UnixTime) -> (Cause, String, CertificateError) {
    use webpki::Error as E;
    let names = presented.words();
    match error {
        E::CertExpired { time, not_after } => {
            let words = if not_after.as_secs() == u64::try_from(presented.not_after).unwrap_or(0) {
                let days = now.as_secs().saturating_sub(not_after.as_secs()) / 86_400;
                format!(
                    "its certificate (for {names}) expired on {}, {days} days ago",
                    date(not_after.as_secs())
                )
            } else {
                format!("an authority in its chain expired on {}", date(not_after.as_secs()))
            };
            (Cause::Expired, words, CertificateError::ExpiredContext { time, not_after })
        }
        E::CertNotValidYet { time, not_before } => {
            let words = format!(
                "its certificate (for {names}) is valid only from {} on; or our clock is wrong",
                date(not_before.as_secs())
            );
            (Cause::NotYetValid, words, CertificateError::NotValidYetContext { time, not_before })
        }
        E::UnknownIssuer => {
            let words = format!(
                "nothing in [tls] trust vouches for its certificate (for {names}), issued by \"{}\"",
                presented.issuer
            );
            (Cause::UnknownIssuer, words, CertificateError::UnknownIssuer)
        }
        E::CertRevoked => {
            let words = format!("its certificate (for {names}) is revoked");
            (Cause::Revoked, words, CertificateError::Revoked)
        }
        E::UnsupportedCriticalExtension => {
            let words = format!("its certificate (for {names}) is for another purpose than TLS");
            (Cause::Chain, words, CertificateError::InvalidPurpose)
        }
        E::InvalidSignatureForPublicKey => {
            let words = format!("the signature of its certificate (for {names}) is wrong");
            (Cause::Chain, words, CertificateError::BadSignature)
        }
        other => {
            let words = format!("its certificate (for {names}) cannot be verified: {other}");
            (Cause::Chain, words, CertificateError::Other(OtherError(Arc::new(other))))
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: pki_types::UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end, between, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.trust.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.trust.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // With all the system's authorities the list would take many records, and break some clients.
        if self.trust.hints.len() > 16 { &[] } else { &self.trust.hints }
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end, between, now).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls12_signature(self, message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        ServerCertVerifier::verify_tls13_signature(self, message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        ServerCertVerifier::supported_verify_schemes(self)
    }
}
