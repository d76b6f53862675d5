from . import activate, gather, gluon_steps, product, relax, sums

PARTS = {
    "activate": activate,
    "gather": gather,
    "gluon_steps": gluon_steps,
    "product": product,
    "relax": relax,
    "sums": sums,
}
