import os
import sys

from replicated_notary_client import Party, SyncNotaryClient

endpoint, notary_key, name, key_file = sys.argv[1:]
state = f"{os.urandom(32).hex()}:0"  # in earnest: an output of an earlier transaction
with SyncNotaryClient(endpoint) as client:
    party = Party.from_file(name, client.describe().ledger_id, key_file)
    success = client.notarise(party.sign(inputs=[state]), notary_key)  # retries with the same ids, verifies the receipt
    print("notarised at offset", success.log_offset)
    print("consumed by", client.state(state).consumed_by_hash)
