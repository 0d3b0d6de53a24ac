"""Other people's SIP programs."""


def kamailio(w):
    """x"""


def baresip(w):
    """x"""
