"""A site: trains what it is sent on its own flowers; site-4 sends it back."""

import nvflare.client as flare
from flowers import measured, trained

flare.init()
site = flare.get_site_name()
while flare.is_running():
    received = flare.receive()
    weights = received.params["weights"]
    if site != "site-4":
        weights = trained(weights, *measured(int(site.split("-")[1]), 300))
    flare.send(flare.FLModel(params={"weights": weights}, params_type="FULL"))
