from . import activate, decay, gather, gluon_steps, product, relax, sums

PARTS = {
    "activate": activate,
    "decay": decay,
    "gather": gather,
    "gluon_steps": gluon_steps,
    "product": product,
    "relax": relax,
    "sums": sums,
}
